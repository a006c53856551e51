"""Numbers about episodes, with intervals.

Two intervals stand beside each proportion. Wilson's takes episodes for independent. Those of one world
are not: a hard world is hard for all its robots, and they meet each other. The cluster bootstrap draws
whole worlds, and so is the one to trust where several episodes share a world.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from scanpilot.evaluation.episodes import Episode
from scanpilot.types import BoolArray, DoubleArray, FloatArray

# Classes of difficulty: shortest path over straight line.
DETOUR_CLASSES = ((1.0, 1.1), (1.1, 1.25), (1.25, 1.5), (1.5, math.inf))


def wilson_interval(successes: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), 95 % by default."""
    if count == 0:
        return 0.0, 1.0
    p = successes / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(values: DoubleArray, seed: int = 0, resamples: int = 1000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean (Efron 1979), seeded."""
    if len(values) == 0:
        return math.nan, math.nan
    picks = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def cluster_interval(
    values: DoubleArray, clusters: Sequence[str], seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """95 % percentile interval of a mean by drawing whole clusters with replacement, seeded.

    Args:
        values: one for each episode; NaN where an episode has none.
        clusters: name of each episode's world.
        seed: of the draws.
        resamples: their number.
    """
    sums, counts = cluster_sums(values, clusters)
    if counts.sum() == 0:
        return math.nan, math.nan
    picks = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    drawn = counts[picks].sum(axis=1)
    # A draw of worlds without a single value says nothing.
    means = sums[picks].sum(axis=1)[drawn > 0] / drawn[drawn > 0]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def cluster_sums(values: DoubleArray, clusters: Sequence[str]) -> tuple[DoubleArray, DoubleArray]:
    """Sum and number of the values in each cluster, clusters in the order they appear."""
    order = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    at = np.array([order[name] for name in clusters], dtype=np.int64)
    known = np.isfinite(values)
    sums: DoubleArray = np.zeros(len(order))
    counts: DoubleArray = np.zeros(len(order))
    np.add.at(sums, at, np.where(known, values, 0.0))
    np.add.at(counts, at, known.astype(np.float64))
    return sums, counts


def smoothness(signal: FloatArray | DoubleArray, frequency: float) -> float:
    """CAPS' measure of one signal ``(T,)``: ``Sm = 2 / (n f_s) * sum_i M_i f_i``; lower is smoother.

    Variant used here: M_i is ``|rfft|`` without normalisation, n the number of its frequencies.
    """
    amplitudes = np.abs(np.fft.rfft(signal))
    frequencies = np.fft.rfftfreq(len(signal), 1.0 / frequency)
    return float(2.0 / (len(amplitudes) * frequency) * np.sum(amplitudes * frequencies))


def path_efficiency(episode: Episode) -> float:
    """SPL of one episode (Anderson et al. 2018): shortest over driven length, 0 unless it succeeded."""
    if episode.outcome != "success":
        return 0.0
    return episode.shortest / max(episode.length, episode.shortest)


def time_ratio(episode: Episode) -> float:
    """Duration over that of the shortest path at top speed; NaN unless it succeeded."""
    return episode.seconds / episode.optimal if episode.outcome == "success" else math.nan


def jerk(episode: Episode) -> float:
    """Mean ``|d^2 v / dt^2|``, m/s^3, of the speed driven from row to row of its poses."""
    steps = np.diff(episode.poses[:, :2], axis=0)
    speeds = np.hypot(steps[:, 0], steps[:, 1]) / episode.period
    if len(speeds) < 3:
        return 0.0
    return float(np.abs(np.diff(speeds, 2)).mean() / episode.period**2)


def action_change(actions: FloatArray, active: BoolArray) -> float:
    """Mean ``|a_t - a_{t-1}|`` over the active components."""
    if len(actions) < 2:
        return 0.0
    return float(np.abs(np.diff(actions[:, active], axis=0)).mean())


def summarise(episodes: Sequence[Episode], active: BoolArray) -> dict[str, Any]:
    """What ``scanpilot eval --json`` says of a suite; fractions, seconds, metres.

    ``X_interval`` of an outcome is Wilson's, ``X_cluster_interval`` draws worlds (see the module), and so
    does every interval of a mean. ``smoothness`` is the mean of Sm over episodes and active components;
    ``time`` is the mean duration of successful episodes, ``time_ratio`` the same over the time of the
    shortest path at top speed, both None without any; ``guard_rate`` is the share of
    all steps in which a guard made the command smaller, 0 without one.
    """
    count = len(episodes)
    named = {name: sum(e.outcome == name for e in episodes) for name in ("success", "collision", "timeout")}
    won = [e for e in episodes if e.outcome == "success"]
    efficiency = np.array([path_efficiency(e) for e in episodes])
    ratios = np.array([time_ratio(e) for e in episodes])
    worlds = [e.world.name for e in episodes]
    clearances = np.array([e.min_clearance for e in episodes])
    jerks = np.array([jerk(e) for e in episodes])
    return {
        "episodes": count,
        **{name: number / count for name, number in named.items()},
        **{f"{name}_interval": wilson_interval(number, count) for name, number in named.items()},
        **{f"{name}_cluster_interval": cluster_interval(_is(episodes, name), worlds) for name in named},
        "worlds": len(set(worlds)),
        "time": float(np.mean([e.seconds for e in won])) if won else None,
        "time_interval": cluster_interval(_of_won(episodes), worlds) if won else None,
        "time_ratio": float(np.nanmean(ratios)) if won else None,
        "time_ratio_interval": cluster_interval(ratios, worlds) if won else None,
        "path_efficiency": float(efficiency.mean()),
        "path_efficiency_interval": cluster_interval(efficiency, worlds),
        "min_clearance": float(clearances.mean()),
        "min_clearance_interval": cluster_interval(clearances, worlds),
        "jerk": float(jerks.mean()),
        "jerk_interval": cluster_interval(jerks, worlds),
        "smoothness": float(
            np.mean(
                [
                    smoothness(e.actions[:, c], 1.0 / e.period)
                    for e in episodes
                    for c in np.flatnonzero(active)
                ]
            )
        ),
        "action_change": float(np.mean([action_change(e.actions, active) for e in episodes])),
        "guard_rate": sum(e.guard_ticks for e in episodes) / max(1, sum(len(e.actions) for e in episodes)),
        "by_detour": [_class_summary(episodes, low, high) for low, high in DETOUR_CLASSES],
    }


def _is(episodes: Sequence[Episode], outcome: str) -> DoubleArray:
    return np.array([e.outcome == outcome for e in episodes], dtype=np.float64)


def _of_won(episodes: Sequence[Episode]) -> DoubleArray:
    return np.array([e.seconds if e.outcome == "success" else math.nan for e in episodes])


def _class_summary(episodes: Sequence[Episode], low: float, high: float) -> dict[str, Any]:
    own = [e for e in episodes if low <= e.detour < high]
    # No way known from start to goal is the longest of detours.
    own += [e for e in episodes if math.isinf(e.detour) and math.isinf(high)]
    return {"detour": [low, high if math.isfinite(high) else None], **_outcomes(own)}


def _outcomes(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Shares of the outcomes of a part of a suite, with intervals for success; None of an empty part."""
    count = len(episodes)
    success = sum(e.outcome == "success" for e in episodes)
    worlds = [e.world.name for e in episodes]
    return {
        "episodes": count,
        **{
            name: sum(e.outcome == name for e in episodes) / count if count else None
            for name in ("success", "collision", "timeout")
        },
        "success_interval": wilson_interval(success, count),
        "success_cluster_interval": cluster_interval(_is(episodes, "success"), worlds) if count else None,
    }


def by_world(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Outcomes in each world, in the order they were driven."""
    grouped: dict[str, list[Episode]] = {}
    for episode in episodes:
        grouped.setdefault(episode.world.name, []).append(episode)
    return [
        {
            "world": name,
            "episodes": len(own),
            **{o: float(_is(own, o).mean()) for o in ("success", "collision", "timeout")},
            "success_interval": wilson_interval(int(_is(own, "success").sum()), len(own)),
            "path_efficiency": float(np.mean([path_efficiency(e) for e in own])),
            "min_clearance": min(e.min_clearance for e in own),
        }
        for name, own in grouped.items()
    ]


def by_condition(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Outcomes under each condition of a suite that has several; empty for the others."""
    names = list(dict.fromkeys(e.condition for e in episodes))
    if len(names) < 2:
        return []
    return [{"condition": name, **_outcomes([e for e in episodes if e.condition == name])} for name in names]
