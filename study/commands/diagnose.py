"""`python -m study diagnose RUN`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from study import text
from study.commands import add_json, add_point, add_runs, emit
from study.status.selection import given_points


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "run", metavar="RUN", help="a run's folder, a study (then its POINT), a trace or a folder of them"
    )
    add_point(parser)
    add_runs(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="the recording that ends at this step; default: the latest"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="kernels, synchronisations and owners listed")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read the run's latest recording, or without one its step times, and say what limits the run."""
    from study.diagnosis import recordings, report
    from study.diagnosis.of_traces import diagnose, read_traces
    from study.diagnosis.step_times import read_step_times

    if options.top < 1:
        raise ValueError(f"--top {options.top} is not allowed: list at least 1")
    target = recordings.find(options.run, given_points(options), options.runs, options.step)
    metrics = None if target.run is None else target.run.metrics
    times = read_step_times(metrics) if metrics is not None and (not target.traces or metrics.exists()) else None
    tokens = None if times is None else times.tokens_per_step
    commands = recordings.trace_commands(target.run, tokens)
    nsys = recordings.nsys_command(target.run)
    about = {"run": target.name, "trace_commands": commands, "nsys_command": nsys}
    if target.traces:
        found = diagnose(read_traces(target.traces), options.top)
        usual = None if times is None else times.seconds_step
        if options.json:
            fields = asdict(found) | {"first": found.limit.first}
            emit("diagnose", None, about | {"source": "trace"} | fields | {"seconds_step_unprofiled": usual})
        else:
            text.show("\n".join([report.of_traces(found, target.name, usual), "", f"with Nsight Systems: {nsys}"]))
        return 0
    assert times is not None, "a run without traces has step times, or is refused"
    if options.json:
        limit = asdict(times.findings[0]) if times.findings else None
        first = times.findings[0].first if times.findings else commands[0]
        emit("diagnose", None, about | {"source": "metrics", "limit": limit} | asdict(times) | {"first": first})
    else:
        text.show("\n".join([report.of_step_times(times, target.name, commands), f"with Nsight Systems: {nsys}"]))
    return 0
