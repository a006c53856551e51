"""Results for people: a table in the terminal, trajectories over the worlds as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scanpilot.evaluation.episodes import Episode
from scanpilot.sim.drawing import draw_world
from scanpilot.sim.world import World

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
    figure.savefig(path, dpi=100)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _interval(interval: Sequence[float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
