"""Draws results/kernels.json as kernels/kernels.svg: time over floor of ours and of the peers. No GPU needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLOURS = {"ours": "#1f77b4", "compile": "#ff7f0e", "liger": "#2ca02c", "torch": "#7f7f7f", "eager": "#7f7f7f"}


def bars(record: dict[str, Any]) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Return (case, [(variant, time over floor, time [s])]) for ours and each peer's best."""
    found = []
    for case in record["cases"]:
        rows: dict[str, float] = {}
        for name, timed in case["variants"].items():
            peer = next((p for p in COLOURS if name.startswith(p)), None)
            if peer and timed["median"] == timed["median"] and name not in {"ours, recompute"}:
                rows[peer] = min(rows.get(peer, timed["median"]), timed["median"])
        found.append((case["name"], [(name, t / case["floor"], t) for name, t in rows.items()]))
    return found


def draw(record: dict[str, Any], target: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "kernels"
    cases = bars(record)
    figure, axis = plt.subplots(figsize=(9, 0.33 * sum(len(rows) + 1 for _, rows in cases)))
    place, ticks, labels = 0.0, [], []
    for name, rows in cases:
        ticks.append(place + (len(rows) - 1) / 2)
        labels.append(name)
        for peer, ratio, seconds in rows:
            axis.barh(place, min(ratio, 4.0), color=COLOURS[peer], height=0.85)
            text = f"{seconds * 1e3:.3g} ms" if seconds > 1e-3 else f"{seconds * 1e6:.0f} µs"
            axis.text(min(ratio, 4.0) + 0.03, place, f"{peer} {text}, {ratio:.2f}", va="center", fontsize=7)
            place += 1
        place += 1
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_yticks(ticks, labels, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 4.9)
    axis.set_xlabel("time over floor (bytes / 4.3 TB/s or operations / 790 TFLOP/s); bars end at 4")
    axis.set_title(record["stamp"], fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(
        json.loads((ROOT / "benchmarks" / "results" / "kernels.json").read_text(encoding="utf-8")),
        ROOT / "kernels" / "kernels.svg",
    )
