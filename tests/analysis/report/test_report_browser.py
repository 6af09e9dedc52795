"""A real browser opens the report: nothing is asked for, nothing fails, nothing overlaps or sticks out."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.report.figures import canvas
from analysis.report.figures.data import read_rows
from analysis.report.page import page
from analysis.report.write import figures, write
from analysis.values import study_result
from analysis.values.blocks import Identified
from analysis.values.study_result import BudgetOptimum

DATA = Path(__file__).parents[1] / "data"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]

MEASURE = """
(() => {
  const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const shared = (a, b, i) => Math.min(a[i + 2], b[i + 2]) - Math.max(a[i], b[i]);
  const overlaps = (a, b) => shared(a, b, 0) > 2 && shared(a, b, 1) > 3;
  const inside = (b, w) => b[0] > w[0] - 2 && b[2] < w[2] + 2 && b[1] > w[1] - 2 && b[3] < w[3] + 2;
  const result = {wide: document.documentElement.scrollWidth - innerWidth, panels: [], clashes: [], outside: [],
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
    broken: [...document.images].filter(i => !i.naturalWidth).length, height: document.body.scrollHeight};
  result.clipped = [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label') + ': ' + e.scrollWidth + ' in ' + e.clientWidth);
  for (const svg of document.querySelectorAll('svg.panel')) {
    const whole = box(svg), name = svg.getAttribute('aria-label');
    result.panels.push({name, width: whole[2] - whole[0], height: whole[3] - whole[1]});
    const shown = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const texts = shown.map(t => [t.textContent, box(t)]);
    for (const [text, b] of texts) if (!inside(b, whole)) result.outside.push(name + ': ' + text);
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++)
      if (overlaps(texts[i][1], texts[j][1])) result.clashes.push(name + ': ' + texts[i][0] + ' / ' + texts[j][0]);
    result.panels.at(-1).texts = texts.length;
  }
  return result;
})()
"""


class Browser:
    """One headless browser, spoken to over its debugging pipe; `events` are all that it reported."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, BROWSER, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _next(self, timeout: float = 900.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser did not answer")
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise ConnectionError("the browser ended")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(DATA / "fit_example.json", tmp_path_factory.mktemp("report")).report


@pytest.fixture(scope="session")
def real_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 240 runs of Hoffmann et al. 2022 as read off their figure by Besiroglu et al. 2024."""
    runs = Path(__file__).parents[4] / "shared" / "data" / "scaling" / "chinchilla_epoch" / "runs.csv"
    if not runs.exists():
        pytest.skip(f"{runs} is not here")
    out = tmp_path_factory.mktemp("real")
    fit = [f"runs={runs}", f"out={out}", "where=in_reference_fit:True", "resamples=50", "workers=1", "report=no"]
    subprocess.run([sys.executable, "-m", "analysis.fit", *fit], check=True, timeout=900, stdout=subprocess.DEVNULL)
    return write(out / "fit.json", out).report


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BROWSER is None:
        pytest.skip("no Chromium here (chromium, chromium-browser, google-chrome): the page was not opened")
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def visit(browser: Browser, report: Path, width: int, scheme: str = "light", media: str = "") -> dict[str, Any]:
    """Open the report at a width in CSS pixels and measure it; the browser's events are those of this visit."""
    browser.events.clear()
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable", session)
    phone = width < 600
    browser.call(
        "Emulation.setDeviceMetricsOverride", session, width=width, height=844, deviceScaleFactor=1, mobile=phone
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", session, media=media, features=features)
    browser.events.clear()
    browser.call("Page.navigate", session, url=report.as_uri())
    browser.wait("Page.loadEventFired")
    found = browser.call("Runtime.evaluate", session, expression=MEASURE, returnByValue=True)
    assert "exceptionDetails" not in found, found
    browser.call("Target.closeTarget", targetId=target)
    measured: dict[str, Any] = found["result"]["value"]
    return measured


def reported(browser: Browser, method: str) -> list[dict[str, Any]]:
    return [event["params"] for event in browser.events if event.get("method") == method]


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_opens_without_an_error_a_request_or_an_overlap(browser: Browser, report: Path, width: int) -> None:
    found = visit(browser, report, width)
    assert [entry["entry"]["text"] for entry in reported(browser, "Log.entryAdded")] == []
    assert reported(browser, "Runtime.exceptionThrown") == []
    assert reported(browser, "Runtime.consoleAPICalled") == []
    assert {r["request"]["url"] for r in reported(browser, "Network.requestWillBeSent")} <= {report.as_uri()}
    assert found["broken"] == 0
    assert found["wide"] <= 0, "the page scrolls sideways"
    assert found["clipped"] == []
    assert len(found["panels"]) == 19
    assert all(p["width"] > 300 and p["height"] > 200 and p["texts"] > 5 for p in found["panels"]), found["panels"]
    assert found["clashes"] == []
    assert found["outside"] == []


@pytest.mark.parametrize("width", [375, 390, 1200, 1400])
def test_a_real_study_with_many_budgets_reads_as_well(browser: Browser, real_report: Path, width: int) -> None:
    found = visit(browser, real_report, width)
    assert reported(browser, "Log.entryAdded") == []
    assert found["wide"] <= 0, "the page scrolls sideways"
    assert found["clipped"] == []
    assert len(found["panels"]) >= 17
    assert found["clashes"] == []
    assert found["outside"] == []


def test_tables_fit_where_runs_have_all_columns_and_a_constant_lies_on_its_bound(
    browser: Browser, tmp_path: Path
) -> None:
    fit, rows = study_result.load(DATA / "fit_example.json"), read_rows(DATA / "runs.csv")
    extra = {"width": "480", "layers": "8", "lr": "0.0198", "batch_tokens": "96256", "bits_per_byte": "0.8738"}
    rows = tuple(
        replace(row, key=f"{i:02d}9b31df1b69", extra={**extra, "width": str(320 + i), "lr": str(0.0101 + i / 1e4),
                "batch_tokens": str(96256 + i), "bits_per_byte": str(1.4 + i / 1e3), "seed": str(i)})
        for i, row in enumerate(rows)
    )  # fmt: skip
    surface = fit.fits.surface
    unknown = {**surface.identified, "E": Identified(False, "the fit puts E on its bound 0", "upper", 1.0753)}
    params = {**surface.params, "E": 9.3e-15, "A": 3.17e6}
    held = replace(surface, params=params, identified=unknown, intervals={**surface.intervals, "A": (36600.0, 6.53e8)})
    plan = fit.recommendation
    assert plan is not None
    ends: dict[str, tuple[float, float] | None] = {
        "params": (1.234e17, 5.678e17), "tokens": (1.234e18, 5.678e18), "tokens_per_param": (0.00123, 4.56e7),
        "loss": (1.2345, 6.789),
    }  # fmt: skip
    wide = BudgetOptimum(3.16e25, 2.345e17, 3.456e18, 1.47e6, 2.3456, ends, beyond=True)
    sizes = replace(plan, optima=(wide,) * 14)
    text = page(replace(fit, fits=replace(fit.fits, surface=held), recommendation=sizes), rows, figures(fit, rows))
    assert text.count('aria-label="compute-optimal sizes"') == 1
    assert "9.3" not in text.partition("The constants</h2>")[2].partition("</section>")[0]
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    for width in (1400, 1200, 390, 375):
        found = visit(browser, file, width)
        assert found["clipped"] == [], width
        assert found["wide"] <= 0, width


@pytest.mark.parametrize("size", ["column", "page"])
def test_figures_for_print_have_room_for_their_text(browser: Browser, size: str, tmp_path: Path) -> None:
    fit, rows = study_result.load(DATA / "fit_example.json"), read_rows(DATA / "runs.csv")
    sheets = [canvas.inline(f.sized(size), f.name, f.title) for f in figures(fit, rows)]
    page = tmp_path / "print.html"
    style = "<style>svg.panel { width: 900px; display: block }</style>"
    page.write_text(f"<!DOCTYPE html><meta charset=utf-8>{style}{''.join(sheets)}", encoding="utf-8")
    found = visit(browser, page, 1000)
    assert len(found["panels"]) == len(sheets) >= 9
    assert found["clashes"] == []
    assert found["outside"] == []


def test_the_measuring_notices_what_it_is_meant_to_notice(browser: Browser, report: Path, tmp_path: Path) -> None:
    bad = '<div class="scroll" aria-label="long" style="width:302px"><div style="width:1500px">long</div></div>'
    bad += '<img src="missing.png"><div style="width:3000px">wide</div><svg class="panel" viewBox="0 0 100 100">'
    bad += '<text x="10" y="50">first</text><text x="12" y="51">second</text><text x="95" y="99">outside</text></svg>'
    page = tmp_path / "bad.html"
    page.write_text(report.read_text(encoding="utf-8").replace("<footer>", bad + "<footer>"), encoding="utf-8")
    found = visit(browser, page, 1200)
    assert found["broken"] == 1
    assert found["wide"] > 1000
    assert found["clipped"] == ["long: 1500 in 300"]
    assert found["clashes"] == ["null: second / first"]
    assert found["outside"] == ["null: outside"]
    assert reported(browser, "Log.entryAdded")


def test_it_follows_a_dark_scheme_and_prints_dark_on_white(browser: Browser, report: Path) -> None:
    light = visit(browser, report, 1200)
    dark = visit(browser, report, 1200, scheme="dark")
    assert (light["ink"], light["paper"]) != (dark["ink"], dark["paper"])
    assert brightness(dark["ink"]) > 150 > brightness(dark["paper"])
    printed = visit(browser, report, 720, scheme="dark", media="print")
    assert brightness(printed["paper"]) == 255
    assert brightness(printed["ink"]) == 0
    assert printed["wide"] <= 0


def brightness(colour: str) -> float:
    """Return the mean of red, green and blue of "rgb(r, g, b)"."""
    parts = [float(part) for part in colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3]]
    return sum(parts) / 3
