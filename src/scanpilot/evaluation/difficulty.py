"""How hard a suite is, whoever drives it: driving straight at the goal, and the detours it asks for.

What was measured once for each version of a suite lies in ``difficulty.json`` beside this module and is
published with every result; ``scanpilot suite --measure`` measures it again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from scanpilot.command import actions_of
from scanpilot.evaluation.episodes import Episode
from scanpilot.evaluation.metrics import by_condition, cluster_interval, wilson_interval
from scanpilot.evaluation.runner import Batched, Named, evaluate
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.robot import RobotSpec
from scanpilot.sim.straight import straight_commands
from scanpilot.types import FloatArray, Triplet

# The last one holds everything beyond.
HISTOGRAM_EDGES = (1.0, 1.05, 1.1, 1.175, 1.25, 1.375, 1.5, 2.0, 3.0)


class Straight:
    """Turns to the goal and drives on, blind: the yardstick."""

    def __init__(self, robot: RobotSpec) -> None:
        self._robot = robot

    def act(self, triplet: Triplet) -> FloatArray:
        """``(N, ...)`` triplets to ``(N, 3)`` actions, or one to ``(3,)``."""
        goals = triplet.batched().goal.astype(np.float64)
        actions = actions_of(straight_commands(np.zeros_like(goals), goals, self._robot), self._robot)
        return actions if triplet.scan.ndim == 3 else actions[0]


def straight(robot: RobotSpec, observation: ObservationSpec | None = None) -> Named:
    """The yardstick as a contender."""
    return Named("straight", Straight(robot), robot, observation or observation_for(robot, 8, 1))


def measure(
    suite: Batched, robot: RobotSpec, episodes: int, seed: int, processes: int | None = None
) -> dict[str, Any]:
    """Drive straight through a suite; what is found for one robot, seed and number of episodes."""
    (driven,) = evaluate([straight(robot)], suite, episodes, seed, processes)
    return {"robot": robot.name, "seed": seed, **describe(driven)}


def describe(driven: Sequence[Episode]) -> dict[str, Any]:
    """Outcomes of straight driving and the detours of the episodes, for JSON."""
    count, won = len(driven), sum(e.outcome == "success" for e in driven)
    success = np.array([e.outcome == "success" for e in driven], dtype=np.float64)
    worlds = [e.world.name for e in driven]
    return {
        "episodes": count,
        "worlds": len(set(worlds)),
        "straight_success": won / count,
        "straight_success_interval": wilson_interval(won, count),
        "straight_success_cluster_interval": cluster_interval(success, worlds),
        "straight_collision": sum(e.outcome == "collision" for e in driven) / count,
        "straight_timeout": sum(e.outcome == "timeout" for e in driven) / count,
        "detours": histogram(driven),
        "detour_1_5_and_more": sum(e.detour >= 1.5 for e in driven) / count,
        "by_condition": by_condition(driven),
    }


def histogram(driven: Sequence[Episode]) -> dict[str, list[float]]:
    """Shares of episodes whose detour lies from each edge to the next; from the last one on without end."""
    edges = np.array([*HISTOGRAM_EDGES, math.inf])
    counts, _ = np.histogram([min(e.detour, 1e9) for e in driven], edges)
    return {"edges": list(HISTOGRAM_EDGES), "shares": [float(c) / len(driven) for c in counts]}


def published(name: str, version: int) -> dict[str, Any] | None:
    """What was measured for a version of a suite; None for one that is not shipped with its numbers."""
    text = resources.files("scanpilot.evaluation").joinpath("difficulty.json").read_text(encoding="utf-8")
    found: dict[str, Any] | None = json.loads(text).get(f"{name} v{version}")
    return found
