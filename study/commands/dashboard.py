"""`python -m study dashboard STUDY`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from study.commands import add_json, add_study, emit
from study.records.settings import find_study, load_submission, reference
from study.storage.files import last_lines
from study.storage.layout import StudyFolder
from study.tracking import server as dashboard
from study.watch.follow import StopSignal
from study.watch.sync_process import SyncProcess

TICK_SECONDS = 0.25
SYNC_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--port", type=int, help="port on 127.0.0.1; default: the first free one from 5000 on")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, sending what MLflow does not have yet meanwhile; for a server elsewhere, name the pages."""
    from study.config.tracking_uri import is_server, resolve

    folder = find_study(options.study, options.runs)
    tracking = load_submission(folder).tracking
    if not tracking.enabled:
        raise ValueError(f"{folder.name} is not tracked (tracking.enabled is false in {folder.study})")
    uri = resolve(tracking.uri, Path.cwd())
    if options.port is not None and not is_server(uri):
        dashboard.free_port(options.port)  # before the work
    log = folder.jobs / "dashboard.log"
    with StopSignal() as stop, SyncProcess(folder) as syncer:
        try:
            # A store's tables are made by its first user: the server must not be there yet.
            experiment = _first_sync(folder, uri, syncer, stop)
            if is_server(uri):
                _show(folder, uri, uri, experiment, options.json)
                return 0
            if not options.json:
                print(f"starting MLflow's server for {folder.name} …", flush=True)
            port = dashboard.free_port(options.port)
            with dashboard.serving(uri, port, log, lambda: stop.requests > 0) as server:
                _show(folder, uri, server.address, experiment, options.json)
                while not stop.requests:
                    if server.ended:
                        raise ValueError(f"the MLflow server has ended: see {log}")
                    time.sleep(TICK_SECONDS)
        except KeyboardInterrupt:
            pass
    if not options.json:
        print(f"the server has ended; python -m study dashboard {reference(folder)} starts it again", flush=True)
    return 0


def _first_sync(folder: StudyFolder, uri: str, syncer: SyncProcess, stop: StopSignal) -> str:
    """Return the id of the study's experiment, once the store has its view. Raises ValueError where that cannot be."""
    from study.config.tracking_uri import identity, shown, sqlite_file
    from study.tracking import state

    limit, database = time.monotonic() + SYNC_SECONDS, sqlite_file(uri)
    while True:
        known = state.load(folder.tracking).stores.get(identity(uri))
        if known is not None and known.shown and (database is None or database.exists()):
            return known.experiment
        if stop.requests:
            raise KeyboardInterrupt
        if syncer.ended or time.monotonic() > limit:
            said = "; ".join(last_lines(folder.jobs / "sync.log")[-2:])
            raise ValueError(f"{folder.name} cannot be sent to {shown(uri)}: {said}")
        time.sleep(TICK_SECONDS)


def _show(folder: StudyFolder, uri: str, address: str, experiment: str, machine: bool) -> None:
    """Say where to look."""
    from study.config.tracking_uri import shown
    from study.tracking.mlflow_view import page

    table, charts = page(shown(address), experiment), page(shown(address), experiment, charts=True)
    if machine:
        emit("dashboard", folder, {"store": shown(uri), "experiment": experiment, "table": table, "charts": charts})
    else:
        print(f"runs:    {table}\ncharts:  {charts}", flush=True)
        if address != uri:
            print("Ctrl-C ends it. From elsewhere: ssh -L PORT:127.0.0.1:PORT this-host, with its port", flush=True)
