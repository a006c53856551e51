"""Numbers about episodes, with intervals."""

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


def action_change(actions: FloatArray, active: BoolArray) -> float:
    """Mean ``|a_t - a_{t-1}|`` over the active components."""
    if len(actions) < 2:
        return 0.0
    return float(np.abs(np.diff(actions[:, active], axis=0)).mean())


def summarise(episodes: Sequence[Episode], active: BoolArray) -> dict[str, Any]:
    """What ``scanpilot eval --json`` says of a suite; fractions, seconds, metres.

    ``smoothness`` is the mean of Sm over episodes and active components; ``time`` is the
    mean duration of successful episodes, None without any; ``guard_rate`` is 0 without a guard.
    """
    count = len(episodes)
    named = {name: sum(e.outcome == name for e in episodes) for name in ("success", "collision", "timeout")}
    won = [e for e in episodes if e.outcome == "success"]
    efficiency = np.array([path_efficiency(e) for e in episodes])
    return {
        "episodes": count,
        **{name: number / count for name, number in named.items()},
        **{f"{name}_interval": wilson_interval(number, count) for name, number in named.items()},
        "time": float(np.mean([e.seconds for e in won])) if won else None,
        "path_efficiency": float(efficiency.mean()),
        "path_efficiency_interval": bootstrap_interval(efficiency),
        "min_clearance": float(np.mean([e.min_clearance for e in episodes])),
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
        "guard_rate": 0.0,
        "by_detour": [_class_summary(episodes, low, high) for low, high in DETOUR_CLASSES],
    }


def _class_summary(episodes: Sequence[Episode], low: float, high: float) -> dict[str, Any]:
    own = [e for e in episodes if low <= e.detour < high]
    success = sum(e.outcome == "success" for e in own)
    return {
        "detour": [low, high if math.isfinite(high) else None],
        "episodes": len(own),
        "success": success / len(own) if own else None,
        "success_interval": wilson_interval(success, len(own)),
    }
