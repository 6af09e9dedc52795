"""`python -m study dashboard`: MLflow's server on loopback, and the study's view in a real browser."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from study.storage.layout import StudyFolder
from study.tracking.mlflow_view import run_page
from tests.analysis.report.test_report_browser import BROWSER, Browser
from tests.processes import has_ended
from tests.study.support.loopback import opened
from tests.study.support.studies import environment, make_study, study_command
from tests.study.tracking.conftest import BEHIND_A_PROXY
from tests.study.tracking.test_tracking_law import FIT
from tests.study.tracking.test_tracking_server import SMALL, free_port

SECONDS = 900.0
"""A server and a browser start in ten seconds on a quiet machine, and in minutes on one that is busy."""

LOOK = """
(() => {
  const text = document.body ? document.body.innerText : '';
  return {text, charts: document.querySelectorAll('.js-plotly-plot').length, url: location.href};
})()
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study `seen` of two widths, with losses on the way and at the end."""
    folder = tmp_path_factory.mktemp("dashboard")
    study, narrow = make_study(folder / "runs" / "seen", [1])
    _, wide = make_study(study.path, [1], width=96)
    study.study.write_text(f"tracking: {{uri: 'sqlite:///{folder}/mlflow.db'}}\n")
    (folder / "reports" / "seen").mkdir(parents=True)
    (folder / "reports" / "seen" / "fit.json").write_text(json.dumps(FIT))
    for key, loss in ((narrow[1], 3.0), (wide[1], 2.0)):
        run = study.run(key)
        run.attempt(1).path.mkdir(parents=True)
        run.config.write_text("{}\n")
        run.attempt(1).job.write_text(json.dumps({"name": "b", "executor": "local", "started": 1.7e9, "nodes": ["n1"]}))
        records = [
            {
                "kind": "train",
                "step": step,
                "tokens": 100 * step,
                "time": 1.7e9 + step,
                "metrics": {"loss": loss + 1 / step},
            }
            for step in range(1, 11)
        ]
        last = {"kind": "validation", "step": 10, "tokens": 1000, "time": 1.7e9 + 10, "metrics": {"loss": loss}}
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in [*records, last]))
        run.outcome.write_text(json.dumps(reached(loss)))
    return study


def reached(loss: float) -> dict[str, Any]:
    return {
        "state": "completed",
        "step": 10,
        "tokens": 1000,
        "flops": 1e9,
        "params": {"total": 20, "matmul": 10},
        "loss": {"validation_nats_per_token": loss},
    }


@pytest.fixture(scope="module")
def dashboard(study: StudyFolder) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "study", "dashboard", "seen", "--json", "--port", str(free_port())]
    given = environment() | SMALL | BEHIND_A_PROXY
    process = subprocess.Popen(command, cwd=study.path.parents[1], env=given, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], SECONDS)
    assert ready, (study.jobs / "dashboard.log").read_text()[-2000:]
    yield process, json.loads(process.stdout.readline())
    process.kill()
    process.wait()


def test_it_listens_on_loopback_alone_and_checks_the_host(dashboard: tuple[object, dict[str, Any]]) -> None:
    _, said = dashboard
    address = said["table"].partition("/#/")[0]
    port = int(address.rpartition(":")[2])
    heard = [one.laddr for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    listening = {address.ip for address in heard if address and address.port == port}
    assert listening == {"127.0.0.1"}
    for host, code in ((f"127.0.0.1:{port}", 200), ("rebound.example", 403), (f"{socket.gethostname()}.x:{port}", 403)):
        request = urllib.request.Request(address, headers={"Host": host})
        try:
            with opened(request, SECONDS) as answer:
                assert answer.status == code
        except urllib.error.HTTPError as error:
            assert error.code == code, host


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: the page was not opened")
def test_the_page_shows_the_runs_with_their_columns_and_charts(
    study: StudyFolder, dashboard: tuple[object, dict[str, Any]], tmp_path: Path
) -> None:
    _, said = dashboard
    browser = Browser(tmp_path / "profile")
    try:
        table = seen(browser, said["table"], ("matching runs", "final_loss", "params_matmul", "w96 "))["text"]
        assert "Traces" not in table.partition("Model registry")[0].partition("Models")[0], "not the GenAI pages"
        assert "Judges" not in table
        home = said["table"].partition("/#/")[0]
        plain = seen(browser, f"{home}/#/experiments/{said['experiment']}", ("Judges", "seen", "L = "))["text"]
        line = next(line for line in plain.splitlines() if "L = " in line)
        assert line.startswith("L = 2.25 + 265/N^0.884"), "the result"
        assert "— Runs Charts Law Summary — Best loss 2, 2 completed" in line, "the ways from where it starts"
        law = said["table"].replace("viewStateShareKey=study", "viewStateShareKey=law")
        assert "2.2506" in seen(browser, law, ("1 matching run", "law/E", "law/alpha"))["text"]
        assert table.index("w96 ") > table.index("final_loss"), "the runs stand below the columns"
        best = f"{home}/{run_page(said['experiment'], run_of(study, said_key(study, 1)))}"
        shown = seen(browser, best, ("completed · final loss 2 · ", "Parent run"))["text"]
        assert "config.yaml" in shown.partition("Metrics (")[0], "what it was told is a click away"
        assert "Error loading shared view state" not in table
        assert [table.index(loss) for loss in ("\n2\n", "\n3\n")] == sorted(table.index(x) for x in ("\n2\n", "\n3\n"))
        charts = seen(browser, said["charts"], ("Scaling: final loss", "log10_flops", "train/loss"), charts=3)
        assert charts["charts"] >= 3
    finally:
        browser.close()
    failed = [e["params"]["response"] for e in browser.events if e.get("method") == "Network.responseReceived"]
    assert [r["url"] for r in failed if r["status"] >= 500] == []
    asked = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith((home, "data:", "blob:", "about:"))} == set()


def test_ctrl_c_ends_all_of_it(study: StudyFolder, dashboard: tuple[subprocess.Popen[str], dict[str, Any]]) -> None:
    process, said = dashboard
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=SECONDS) == 0
    assert [child.pid for child in children if not has_ended(child.pid)] == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(said["table"].partition("/#/")[0].rpartition(":")[2]))) != 0
    found = json.loads(study_command("show", "seen", said_key(study), "--json", cwd=study.path.parents[1]).stdout)
    assert found["mlflow"]["page"] == run_page(said["experiment"], found["mlflow"]["run"])


def said_key(study: StudyFolder, number: int = 0) -> str:
    return str(json.loads(study.points.read_text().splitlines()[number])["key"])


def run_of(study: StudyFolder, key: str) -> str:
    (store,) = json.loads(study.tracking.read_text())["stores"].values()
    return str(store["runs"][key]["id"])


def seen(browser: Browser, url: str, words: tuple[str, ...], charts: int = 0) -> dict[str, Any]:
    """Open a page and return what it shows once these words and so many charts are there."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Network"):
        browser.call(f"{domain}.enable", session)
    browser.call(
        "Emulation.setDeviceMetricsOverride", session, width=1900, height=1400, deviceScaleFactor=1, mobile=False
    )
    browser.call("Page.navigate", session, url=url)
    limit = time.monotonic() + SECONDS
    while True:
        found = browser.call("Runtime.evaluate", session, expression=LOOK, returnByValue=True)["result"]["value"]
        if all(word in found["text"] for word in words) and found["charts"] >= charts:
            browser.call("Target.closeTarget", targetId=target)
            return dict(found)
        assert time.monotonic() < limit, f"not shown: {words}, {charts} charts; but\n{found}"
        time.sleep(0.5)
