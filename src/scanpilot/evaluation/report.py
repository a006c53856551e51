"""Results for people: a table in the terminal, trajectories over the worlds as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    for column in ("", "value", "95 % interval", "over worlds"):
        table.add_column(column)
    for name in ("success", "collision", "timeout"):
        table.add_row(
            name,
            _percent(result[name]),
            _interval(result[f"{name}_interval"]),
            _interval(result[f"{name}_cluster_interval"]),
        )
    if "barn_score" in result:
        low, high = result["barn_score_interval"]
        table.add_row("BARN score (of 0.5)", f"{result['barn_score']:.4f}", "", f"{low:.4f} to {high:.4f}")
    table.add_row(
        "path efficiency (SPL)",
        _percent(result["path_efficiency"]),
        "",
        _interval(result["path_efficiency_interval"]),
    )
    if result["time"] is not None:
        table.add_row("time of successes", f"{result['time']:.1f} s")
        table.add_row("the same over that of the shortest path", f"{result['time_ratio']:.2f}")
    table.add_row("smallest clearance, mean", f"{result['min_clearance']:.2f} m")
    table.add_row("smoothness Sm (lower is smoother)", f"{result['smoothness']:.3f}")
    table.add_row("mean |change of action|", f"{result['action_change']:.3f}")
    if result["guard_rate"] > 0.0:
        table.add_row("steps in which the guard acted", _percent(result["guard_rate"]))
    table.add_row("mean jerk", f"{result['jerk']:.2f} m/s^3")
    for part in result["by_detour"]:
        low, high = part["detour"]
        label = f"success, detour {low:g} to {high:g}" if high else f"success, detour {low:g} and more"
        _add_part(table, label, part)
    for part in result.get("by_condition", ()):
        _add_part(table, f"success, {part['condition']}", part)
    console.print(table)
    for difference in result.get("barn_not_as_official", ()):
        console.print(f"not the challenge's robot, so not its score: {difference}")


def _add_part(table: Table, label: str, part: dict[str, Any]) -> None:
    """A row for the success in a part of the episodes; a part may have none."""
    if part["episodes"]:
        table.add_row(
            f"{label} ({part['episodes']})",
            _percent(part["success"]),
            _interval(part["success_interval"]),
            _interval(part["success_cluster_interval"]),
        )


def print_paired(compared: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print what `paired.compare` found; nothing when there is nothing to compare."""
    if not compared:
        return
    table = Table(title="success on the same episodes: second less first")
    for column in ("first", "second", "difference", "over worlds", "first / second only", "p", "p (McNemar)"):
        table.add_column(column)
    for pair in compared:
        table.add_row(
            pair["first"],
            pair["second"],
            _percent(pair["difference"]),
            _interval(pair["difference_interval"]),
            f"{pair['only_first']} / {pair['only_second']}",
            f"{pair['p_holm']:.4f}",
            f"{pair['p_mcnemar']:.4f}",
        )
    (console or Console()).print(table)


def print_difficulty(suite: str, known: dict[str, Any] | None, console: Console | None = None) -> None:
    """Print how hard a suite is, as `difficulty` has it."""
    console = console or Console()
    if known is None:
        console.print(f"{suite}: difficulty not measured; scanpilot suite --suite {suite} --measure does")
        return
    console.print(
        f"{suite}: driving straight at the goal succeeds in {_percent(known['straight_success'])} "
        f"({_interval(known['straight_success_interval'])}) of {known['episodes']} episodes in "
        f"{known['worlds']} worlds (robot {known['robot']}, seed {known['seed']}); a detour of 1.5 or more "
        f"in {_percent(known['detour_1_5_and_more'])}"
    )
    edges, shares = known["detours"]["edges"], known["detours"]["shares"]
    labels = [f"{a:g}-{b:g}" for a, b in pairwise(edges)] + [f"{edges[-1]:g}+"]
    told = ", ".join(f"{label}: {_percent(s)}" for label, s in zip(labels, shares, strict=True))
    console.print(f"  detours: {told}")


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
