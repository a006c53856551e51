"""Is one policy better than another, on the very same episodes? Tests of paired differences.

Two answers beside each other. McNemar's exact test takes episodes for independent; the sign-flip test
and the interval of the difference take worlds for independent and their episodes as one, which is what
they are where robots share a world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scanpilot.evaluation.episodes import Episode
from scanpilot.evaluation.metrics import cluster_interval, cluster_sums, path_efficiency
from scanpilot.types import DoubleArray


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value (McNemar 1947, binomial form) of the episodes that one of two won alone."""
    n, fewer = only_first + only_second, min(only_first, only_second)
    tail: float = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    return min(1.0, 2.0 * tail)


def sign_flip(differences: DoubleArray, seed: int = 0, draws: int = 10_000) -> float:
    """Two-sided p-value of a mean of independent differences being 0 (Fisher's randomisation test).

    Each difference is as likely to have had the other sign; seeded draws of all signs.
    """
    moved = differences[differences != 0.0]
    if len(moved) == 0:
        return 1.0
    signs = np.random.default_rng(seed).integers(0, 2, size=(draws, len(moved))) * 2 - 1
    extreme = np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9
    return float((1 + extreme.sum()) / (draws + 1))


def compare(contenders: Mapping[str, Sequence[Episode]]) -> list[dict[str, Any]]:
    """Each pair of contenders that drove the same episodes: ``difference`` is the second's less the first's.

    ``p`` is the sign-flip test's over worlds, ``p_holm`` the same corrected for the number of pairs
    (Holm 1979), ``p_mcnemar`` over episodes.

    Raises:
        ValueError: two of them did not drive the same episodes.
    """
    pairs = [_compared(a, b, contenders[a], contenders[b]) for a, b in itertools.combinations(contenders, 2)]
    corrected = holm([pair["p"] for pair in pairs])
    return [{**pair, "p_holm": p} for pair, p in zip(pairs, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for their number."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _compared(
    name_a: str, name_b: str, first: Sequence[Episode], second: Sequence[Episode]
) -> dict[str, Any]:
    _check_paired(name_a, name_b, first, second)
    worlds = [episode.world.name for episode in first]
    won_a = np.array([e.outcome == "success" for e in first], dtype=np.float64)
    won_b = np.array([e.outcome == "success" for e in second], dtype=np.float64)
    won = won_b - won_a
    spl = np.array([path_efficiency(b) - path_efficiency(a) for a, b in zip(first, second, strict=True)])
    by_world, _ = cluster_sums(won, worlds)
    only_a, only_b = int((won < 0).sum()), int((won > 0).sum())
    return {
        "first": name_a,
        "second": name_b,
        "episodes": len(first),
        "difference": float(won.mean()),
        "difference_interval": cluster_interval(won, worlds),
        "only_first": only_a,
        "only_second": only_b,
        "p": sign_flip(by_world),
        "p_mcnemar": mcnemar(only_a, only_b),
        "path_efficiency_difference": float(spl.mean()),
        "path_efficiency_difference_interval": cluster_interval(spl, worlds),
    }


def _check_paired(name_a: str, name_b: str, first: Sequence[Episode], second: Sequence[Episode]) -> None:
    same = len(first) == len(second) and all(
        a.world.name == b.world.name
        and a.condition == b.condition
        and np.array_equal(a.poses[0], b.poses[0])
        and np.array_equal(a.goal, b.goal)
        for a, b in zip(first, second, strict=True)
    )
    if not same:
        raise ValueError(
            f"{name_a} and {name_b} did not drive the same episodes: robots with other footprints get other "
            "starts and goals, and do not compare pair by pair"
        )
