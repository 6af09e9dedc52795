"""`python -m study dashboard STUDY`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from study import dashboard
from study.commands import add_json, add_study, emit
from study.follow import Stop
from study.freeze import load_points
from study.layout import StudyFolder
from study.submission import find_study, load_submission, reference
from study.sync_process import SyncProcess
from study.where import flat

TICK_SECONDS = 0.25
SYNC_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--port", type=int, help="port on 127.0.0.1; default: the first free one from 5000 on")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, sending what MLflow does not have yet meanwhile; for a server elsewhere, name the pages."""
    from study.tracking.uri import is_server, resolve

    folder = find_study(options.study, options.runs)
    tracking = load_submission(folder).tracking
    if not tracking.enabled:
        raise ValueError(f"{folder.name} is not tracked (tracking.enabled is false in {folder.study})")
    uri = resolve(tracking.uri, Path.cwd())
    with Stop() as stop, SyncProcess(folder):
        if is_server(uri):
            _show(folder, uri, uri, stop, options.json)
            return 0
        port = dashboard.free_port(options.port)
        log = folder.jobs / "dashboard.log"
        if not options.json:
            print(f"starting MLflow's server for {folder.name} …", flush=True)
        try:
            with dashboard.serving(uri, port, log, lambda: stop.requests > 0) as address:
                _show(folder, uri, address, stop, options.json)
                while not stop.requests:
                    if not dashboard.answers(address) and not dashboard.answers(address):
                        raise ValueError(f"the MLflow server has ended: see {log}")
                    _rest(stop)
        except KeyboardInterrupt:
            pass
    if not options.json:
        print(f"the server has ended; python -m study dashboard {reference(folder)} starts it again", flush=True)
    return 0


def _show(folder: StudyFolder, uri: str, address: str, stop: Stop, machine: bool) -> None:
    """Write the study's view, as soon as its experiment is there, and say where to look."""
    from study.tracking import views
    from study.tracking.uri import shown

    limit = time.monotonic() + SYNC_SECONDS
    while (found := dashboard.experiment(address, folder.name)) is None:
        if stop.requests:
            raise KeyboardInterrupt
        if time.monotonic() > limit:
            raise ValueError(f"{folder.name} is not in {shown(uri)} yet: see {folder.jobs / 'sync.log'}")
        time.sleep(TICK_SECONDS)
    configs = [flat(asdict(point.config)) for point in load_points(folder).values()]
    parameters = views.varying(configs)
    dashboard.set_tag(address, found, views.TAG + views.KEY, views.encode(views.view(parameters)))
    table, charts = views.page(shown(address), found), views.page(shown(address), found, charts=True)
    if machine:
        emit("dashboard", folder, {"store": shown(uri), "experiment": found, "table": table, "charts": charts})
    else:
        print(f"runs:    {table}\ncharts:  {charts}", flush=True)
        if address != uri:
            print("Ctrl-C ends it. From elsewhere: ssh -L PORT:127.0.0.1:PORT this-host, with its port", flush=True)


def _rest(stop: Stop) -> None:
    end = time.monotonic() + 5.0
    while not stop.requests and time.monotonic() < end:
        time.sleep(TICK_SECONDS)
