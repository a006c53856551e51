"""Named, versioned, seeded sets of episodes; disjoint from the worlds that training sees.

What a suite is, and how one batch of it is driven. Who drives, and in how many processes, is
`runner`'s business; the suite from files is `barn`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scanpilot.evaluation.episodes import Act, Episode, run_episodes
from scanpilot.evaluation.guarded import Safety
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec
from scanpilot.robot import Lidar, RobotSpec
from scanpilot.sim import sources
from scanpilot.sim.simulator import SimulatorConfig
from scanpilot.sim.walkers import WalkerConfig
from scanpilot.task import TaskConfig

_IDEAL = SimulatorConfig()
_ALONE = WalkerConfig()


@dataclass(frozen=True)
class Condition:
    """A departure from the ideal that a part of a suite is driven under.

    Attributes:
        name: for the report.
        simulator: noise, latency.
        lidar: instead of the robot's own, at its place; None leaves that one.
        actuation_delay: added to the robot's own, seconds.
    """

    name: str
    simulator: SimulatorConfig = _IDEAL
    lidar: Lidar | None = None
    actuation_delay: float = 0.0

    def applied(self, robot: RobotSpec) -> RobotSpec:
        """The robot under this condition."""
        own, lidar = robot.lidar, self.lidar
        if lidar is not None:
            lidar = replace(lidar, x=own.x, y=own.y, yaw=lidar.yaw + own.yaw, rate=own.rate)
        delay = robot.actuation_delay + self.actuation_delay
        return replace(robot, lidar=lidar or own, actuation_delay=delay)


@dataclass(frozen=True)
class Batch:
    """Episodes that are driven together, whatever else is driven elsewhere at the same time.

    Attributes:
        first: number of its first world.
        worlds: how many.
        count: episodes of them that are asked for.
        condition: index among the suite's conditions.
        alone: the suite is this batch; its starts are then drawn as `Suite` says.
    """

    first: int
    worlds: int
    count: int
    condition: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Suite:
    """A set of episodes.

    Attributes:
        name: as ``scanpilot eval --suite`` takes it.
        version: rises whenever its episodes change; results of different versions do not compare.
        generator: of its worlds, see `sources.worlds`.
        robots_per_world: that share a world, each with its own goal.
        about: one line for people.
        worlds_per_batch: worlds that are simulated side by side. Each such batch draws its starts, goals
            and noise from a stream of its own, so that the first episodes of a long evaluation are those
            of a short one, and several processes find what one finds. None: all are one batch that
            draws from one stream (`crowd` and `clutter`, whose figures were published before there
            were batches), and the number of episodes is part of what is measured.
        conditions: under which each of its worlds is driven in turn.
        walkers: who else is about.
        safety: guard and recovery that every robot of it drives with; None: neither.
    """

    name: str
    version: int
    generator: str
    robots_per_world: int
    about: str = ""
    worlds_per_batch: int | None = None
    conditions: tuple[Condition, ...] = (Condition(""),)
    walkers: WalkerConfig = _ALONE
    safety: Safety | None = None

    def batches(self, episodes: int) -> list[Batch]:
        """How so many episodes are driven."""
        if self.worlds_per_batch is None:
            return [Batch(0, math.ceil(episodes / self.robots_per_world), episodes, alone=True)]
        size = self.worlds_per_batch * self.robots_per_world
        found: list[Batch] = []
        while (left := episodes - size * len(found)) > 0:
            block, condition = divmod(len(found), len(self.conditions))
            first = block * self.worlds_per_batch
            found.append(Batch(first, self.worlds_per_batch, min(size, left), condition))
        return found

    def drive(
        self,
        batch: Batch,
        act: Act,
        robot: RobotSpec,
        observation: ObservationSpec,
        seed: int,
        stream: sources.Stream = "test",
        task: TaskConfig | None = None,
        threads: int = 1,
    ) -> list[Episode]:
        """Drive one batch; the same seed gives the same episodes. Arguments as of `run_suite`."""
        condition = self.conditions[batch.condition]
        make = sources.worlds(self.generator, stream, seed)
        config = FleetConfig(
            worlds=batch.worlds,
            robots_per_world=self.robots_per_world,
            world_lifetime=0,
            simulator=replace(condition.simulator, threads=threads),
            walkers=self.walkers,
        )
        fleet = SimulatedFleet(
            lambda number: make(batch.first + number),
            condition.applied(robot),
            observation,
            task or TaskConfig(),
            config,
            seed if batch.alone else _stream_of(seed, batch.first),
        )
        return run_episodes(fleet, act, batch.count, condition.name, self.safety)


def _stream_of(seed: int, first_world: int) -> int:
    """Conditions share it: the same worlds, starts and goals under each of them."""
    return int(np.random.SeedSequence([seed, first_world]).generate_state(1)[0])


_SENSORS = (
    Condition("ideal"),
    Condition("noise", SimulatorConfig(scan_noise=0.02, scan_noise_proportional=0.01)),
    Condition("dropout", SimulatorConfig(scan_dropout=0.1, scan_short=0.002)),
    Condition("short range", lidar=Lidar(beams=360, range_min=0.12, range_max=3.5)),
    Condition("sparse", lidar=Lidar(beams=60, range_max=10.0)),
    Condition(
        "ahead only",
        lidar=Lidar(beams=720, angle_min=-0.75 * math.pi, angle_max=0.75 * math.pi, range_max=30.0),
    ),
)
_LATENCY = (
    Condition("none"),
    Condition("scan 0.1 s late", SimulatorConfig(scan_latency=0.1)),
    Condition("command 0.1 s late", actuation_delay=0.1),
    Condition("both, scan takes 0.1 s", SimulatorConfig(scan_latency=0.1, scan_duration=0.1), None, 0.1),
)

SUITES = {
    suite.name: suite
    for suite in (
        Suite("crowd", 1, "clutter", 8, "eight robots a world among boxes, walls, corridors, dead ends"),
        Suite("clutter", 1, "clutter", 1, "the worlds of crowd, each robot alone"),
        Suite("rooms", 1, "rooms", 2, "two robots a world in furnished rooms joined by doors", 32),
        Suite("corridors", 1, "corridors", 1, "a robot alone in corridors with dead ends", 64),
        Suite("office", 1, "office", 2, "two robots a world between a hallway and offices", 32),
        Suite(
            "dynamic",
            1,
            "crowd",
            4,
            "four robots a world among six people who walk at 0.3 to 1 m/s",
            16,
            walkers=WalkerConfig(count=6),
        ),
        Suite(
            "sensors",
            1,
            "clutter",
            4,
            "the same episodes with noise, dropout and other lidars",
            8,
            _SENSORS,
        ),
        Suite(
            "latency",
            1,
            "clutter",
            4,
            "the same episodes with late scans and late commands",
            8,
            _LATENCY,
        ),
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
    threads: int = 1,
) -> list[Episode]:
    """Drive ``episodes`` episodes of a suite in this process; the same seed gives the same ones.

    Args:
        suite: which.
        act: ``(N, ...)`` triplets to ``(N, 3)`` actions.
        robot: that drives.
        observation: that ``act`` expects.
        episodes: how many.
        seed: of worlds, starts and goals.
        stream: ``test``, or ``validation`` for what training may look at.
        task: goal radius and time limit; the defaults unless given.
        threads: of the simulator; the episodes do not depend on it.
    """
    driven: list[Episode] = []
    for batch in suite.batches(episodes):
        driven += suite.drive(batch, act, robot, observation, seed, stream, task, threads)
    return driven
