"""Results for people: a table in the terminal, trajectories over the worlds as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from scanpilot.evaluation.episodes import Episode
from scanpilot.observation import ObservationSpec
from scanpilot.sim.drawing import draw_world
from scanpilot.sim.world import World
from scanpilot.types import FloatArray

if TYPE_CHECKING:
    # Not at run time: it takes a second, which a table need not wait.
    from matplotlib.figure import Figure

_COLORS = {"success": "#2a7f3f", "collision": "#c02020", "timeout": "#d08a00"}


def print_summary(result: dict[str, Any], console: Console | None = None) -> None:
    """Print what ``scanpilot eval`` found for one policy."""
    console = console or Console()
    table = Table(
        title=f"{result['policy']} ({result['identity']}) on {result['suite']} v{result['suite_version']}, "
        f"seed {result['seed']}, {result['episodes']} episodes"
    )
    for column in ("", "value", "95 % interval"):
        table.add_column(column)
    for name in ("success", "collision", "timeout"):
        table.add_row(name, _percent(result[name]), _interval(result[f"{name}_interval"]))
    table.add_row(
        "path efficiency (SPL)",
        _percent(result["path_efficiency"]),
        _interval(result["path_efficiency_interval"]),
    )
    table.add_row("time of successes", "-" if result["time"] is None else f"{result['time']:.1f} s", "")
    table.add_row("smallest clearance, mean", f"{result['min_clearance']:.2f} m", "")
    table.add_row("smoothness Sm (lower is smoother)", f"{result['smoothness']:.3f}", "")
    table.add_row("mean |change of action|", f"{result['action_change']:.3f}", "")
    for part in result["by_detour"]:
        low, high = part["detour"]
        label = f"success, detour {low:g} to {high:g}" if high else f"success, detour {low:g} and more"
        value = _percent(part["success"]) if part["episodes"] else "-"
        table.add_row(f"{label} ({part['episodes']})", value, _interval(part["success_interval"]))
    console.print(table)


def draw_trajectories(episodes: Sequence[Episode], path: Path, title: str, worlds: int = 6) -> None:
    """Draw the episodes of the first few worlds into a PNG: green arrived, red collided, orange timed out."""
    trajectories_figure(episodes, title, worlds).savefig(path, dpi=100)


def trajectories_figure(episodes: Sequence[Episode], title: str, worlds: int = 6) -> Figure:
    """`draw_trajectories` without the file."""
    from matplotlib.figure import Figure

    grouped: dict[int, list[Episode]] = {}
    for episode in episodes:
        if id(episode.world) in grouped or len(grouped) < worlds:
            grouped.setdefault(id(episode.world), []).append(episode)
    columns = min(3, len(grouped))
    rows = -(-len(grouped) // columns)
    figure = Figure(figsize=(5 * columns, 5 * rows), layout="constrained")
    figure.suptitle(title)
    for number, group in enumerate(grouped.values()):
        axes = figure.add_subplot(rows, columns, number + 1)
        world: World = group[0].world
        draw_world(axes, world)
        axes.set_title(world.name, fontsize=9)
        for episode in group:
            color = _COLORS[episode.outcome]
            axes.plot(episode.poses[:, 0], episode.poses[:, 1], color=color, linewidth=1.5)
            axes.plot(*episode.poses[0, :2], marker="o", markersize=4, color=color)
            axes.plot(*episode.goal[:2], marker="*", markersize=9, color=color)
    return figure


def reconstructions_figure(scans: FloatArray, reconstructions: FloatArray, spec: ObservationSpec) -> Figure:
    """What the autoencoder makes of some scans, both ``(N, n)`` metres, seen from above in base_link."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(scans), 4), layout="constrained")
    x, y = np.cos(spec.angles), np.sin(spec.angles)
    for number, (scan, reconstruction) in enumerate(zip(scans, reconstructions, strict=True)):
        axes = figure.add_subplot(1, len(scans), number + 1)
        seen = scan < spec.range_max
        axes.plot(scan[seen] * x[seen], scan[seen] * y[seen], "k.", markersize=4, label="scan")
        axes.plot(
            reconstruction * x, reconstruction * y, color="#c02020", linewidth=1, label="reconstruction"
        )
        reach = 1.2 * float(scan[seen].max()) if seen.any() else spec.range_max
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-reach, reach)
        axes.set_aspect("equal")
        error = float(np.abs(scan - reconstruction)[seen].mean()) if seen.any() else 0.0
        axes.set_title(f"mean error {error:.2f} m", fontsize=9)
        if not number:
            axes.legend(fontsize=8)
    return figure


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _interval(interval: Sequence[float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
