"""The manual is built without a warning, and a real browser opens it, searches it and asks for nothing from outside."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.report.test_report_browser import BROWSER, Browser, reported
from tests.once import once

ROOT = Path(__file__).parents[1]
FOUND = """
(async () => {
  const input = document.querySelector("input.md-search__input");
  document.querySelector("#__search").click();
  input.focus();
  input.value = "%s";
  for (let waited = 0; waited < 150; waited++) {
    input.dispatchEvent(new Event("input", {bubbles: true}));
    input.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    await new Promise(go => setTimeout(go, 100));
    const found = [...document.querySelectorAll("a.md-search-result__link")].map(a => a.getAttribute("href"));
    if (found.length) return found;
  }
  return [];
})()
"""
WIDTHS = """({wide: document.documentElement.scrollWidth - innerWidth, title: document.title,
  broken: [...document.images].filter(i => !i.naturalWidth).length})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, session_folder: Path) -> Path:
    """The site; all workers read it."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs-material is not here: make docs installs it")
    return Path(once(session_folder / "site.txt", lambda: built(tmp_path_factory.mktemp("site"))))


def built(path: Path) -> str:
    """Build the site into an empty folder; return its name."""
    command = ["mkdocs", "build", "--quiet", "--strict", "-f", str(ROOT / ".ci/site/mkdocs.yml"), "-d", str(path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return str(path)


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BROWSER is None:
        pytest.skip("no Chromium here (chromium, chromium-browser, google-chrome): the site was not opened")
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def visit(browser: Browser, page: str, width: int, expression: str) -> Any:
    """Open a page at a width in CSS pixels and return what an expression gives there."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable", session)
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.call("Emulation.setDeviceMetricsOverride", session, **size)
    browser.events.clear()
    browser.call("Page.navigate", session, url=page)
    browser.wait("Page.loadEventFired")
    found = browser.call("Runtime.evaluate", session, expression=expression, returnByValue=True, awaitPromise=True)
    browser.call("Target.closeTarget", targetId=target)
    assert "exceptionDetails" not in found, found
    return found["result"]["value"]


@pytest.mark.parametrize(
    ("words", "place"),
    [("preempted", "slurm-life.html"), ("lr_scale", "reference/keys.html"), ("isoFLOP valley", "glossary.html")],
)
def test_a_search_finds_the_page(browser: Browser, address: str, words: str, place: str) -> None:
    found = visit(browser, f"{address}/index.html", 1400, FOUND % words)
    assert any(place in link for link in found), found
    asked = {event["request"]["url"] for event in reported(browser, "Network.requestWillBeSent")}
    assert all(url.startswith((address, "data:", "blob:")) for url in asked), asked


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize(
    "page", ["index", "tutorial", "gallery", "troubleshooting", "reference/keys", "reference/python"]
)
def test_pages_fit_and_are_whole(browser: Browser, address: str, page: str, width: int) -> None:
    found = visit(browser, f"{address}/{page}.html", width, WIDTHS)
    assert found["wide"] <= 0, "the page scrolls sideways"
    assert found["broken"] == 0
    assert found["title"].endswith("scaling-study")
    assert [entry["entry"]["text"] for entry in reported(browser, "Log.entryAdded")] == []


def test_every_page_is_in_the_menu(site: Path) -> None:
    """A README.md was once taken for the start of its section: the menu then had no entry for it."""
    menu = (site / "troubleshooting.html").read_text("utf-8")
    nav = (ROOT / ".ci/site/mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    entries = re.findall(r"^ *- \"?(.+?)\"?: (\S+)\.md$", nav, flags=re.MULTILINE)
    assert len(entries) > 30
    shown = {" ".join(link.split()) for link in re.findall(r'<span class="md-ellipsis">(.*?)</span>', menu, re.DOTALL)}
    assert not [name for name, _ in entries if name.replace("&", "&amp;") not in shown]


def test_the_reference_is_whole(site: Path) -> None:
    from study.commands import COMMANDS
    from study.config.schema import sections

    keys = (site / "reference" / "keys.html").read_text("utf-8")
    assert not [key.path for part in sections() for key in part.keys if f"<code>{key.path}</code>" not in keys]
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    assert not [name for name in COMMANDS if f"<code>{name}</code>" not in commands]
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    assert {"howto/law.html#add-a-law", "contributing.html#a-kernel"} <= {entry["location"] for entry in index["docs"]}


def test_no_markdown_is_left_in_a_page(site: Path) -> None:
    """A list, table or block that is indented too little for the site's renderer would be shown with its signs."""
    pages = [path for path in site.rglob("*.html") if "<article" in path.read_text("utf-8")]
    assert len(pages) > 40
    for path in pages:
        article = path.read_text("utf-8").partition("<article")[2].partition("</article")[0]
        text = re.sub(r"<pre>.*?</pre>", "", article, flags=re.DOTALL)
        left = re.findall(r"\n *((?:- \S|\d+\. \S|\||```|#+ ).{0,60})", text)
        assert not left, f"{path.relative_to(site)}: {left}"


@pytest.mark.parametrize("page, wide", [("gallery.html", 3), ("flagship/index.html", 2), ("howto/deepspeed.html", 1)])
def test_wide_figures_keep_their_size_on_a_phone(browser: Browser, address: str, page: str, wide: int) -> None:
    """Figures of several panels scroll in place instead of shrinking until their labels cannot be read."""
    widths = visit(
        browser,
        f"{address}/{page}",
        390,
        "[...document.querySelectorAll('article img')].map(i => i.getBoundingClientRect().width)",
    )
    assert sum(width >= 700 for width in widths) == wide, widths
