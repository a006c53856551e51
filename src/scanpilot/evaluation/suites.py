"""Named, versioned, seeded sets of episodes; disjoint from the worlds that training sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scanpilot.evaluation.episodes import Act, Episode, run_episodes
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.sim import sources
from scanpilot.task import TaskConfig


@dataclass(frozen=True)
class Suite:
    """A set of episodes.

    Attributes:
        name: as ``scanpilot eval --suite`` takes it.
        version: rises whenever its episodes change; results of different versions do not compare.
        generator: of its worlds, see `sources.worlds`.
        robots_per_world: that share a world, each with its own goal.
    """

    name: str
    version: int
    generator: str
    robots_per_world: int


SUITES = {
    suite.name: suite
    for suite in (
        Suite("crowd", version=1, generator="clutter", robots_per_world=8),
        Suite("clutter", version=1, generator="clutter", robots_per_world=1),
    )
}


def run_suite(
    suite: Suite,
    act: Act,
    robot: RobotSpec,
    observation: ObservationSpec,
    episodes: int,
    seed: int,
    stream: sources.Stream = "test",
    task: TaskConfig | None = None,
) -> list[Episode]:
    """Drive ``episodes`` episodes of a suite; the same seed gives the same ones.

    Args:
        suite: which.
        act: ``(N, ...)`` triplets to ``(N, 3)`` actions.
        robot: that drives.
        observation: that ``act`` expects.
        episodes: how many.
        seed: of worlds, starts and goals.
        stream: ``test``, or ``validation`` for what training may look at.
        task: goal radius and time limit; the defaults unless given.
    """
    worlds = math.ceil(episodes / suite.robots_per_world)
    config = FleetConfig(worlds=worlds, robots_per_world=suite.robots_per_world, world_lifetime=0)
    fleet = SimulatedFleet(
        sources.worlds(suite.generator, stream, seed), robot, observation, task or TaskConfig(), config, seed
    )
    return run_episodes(fleet, act, episodes)
