"""What a trainer drives: many robots, one step at a time. Knows the task; knows no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scanpilot import command
from scanpilot.observation import FrameStack, ObservationSpec, ScanResampler, guide_for, triplets_of
from scanpilot.robot import RobotSpec
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.sources import WorldMaker
from scanpilot.sim.walkers import WalkerConfig, Walkers
from scanpilot.sim.world import World
from scanpilot.task import TaskConfig, judge, suited_to
from scanpilot.types import BoolArray, DoubleArray, FloatArray, StepResult, Triplet


class Fleet(Protocol):
    """Robots that act in step: simulated, on ROS topics, or remote."""

    @property
    def num_robots(self) -> int:
        """N."""
        ...

    @property
    def robot(self) -> RobotSpec:
        """What every robot is."""
        ...

    @property
    def observation(self) -> ObservationSpec:
        """What every robot sees."""
        ...

    def observe(self) -> Triplet:
        """The triplets ``(N, ...)`` that the next actions are to answer."""
        ...

    def step(self, actions: FloatArray) -> StepResult:
        """Execute ``(N, 3)`` actions for one control period; ended episodes begin anew."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on as if nothing had happened, as far as that can be."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        ...

    def close(self) -> None:
        """Let go of what the fleet holds."""
        ...


class Experience(NamedTuple):
    """One step of some robots: what they saw, what came of it, and their ids, ``(N,)``."""

    before: Triplet
    result: StepResult
    robots: NDArray[np.int64]


@runtime_checkable
class Rollouts(Protocol):
    """Robots elsewhere that act by themselves, with the weights they were sent last.

    A `Fleet` in step would wait for the slowest connection at every step.
    """

    @property
    def num_robots(self) -> int:
        """Of all together."""
        ...

    @property
    def robot(self) -> RobotSpec:
        """What every robot is."""
        ...

    @property
    def observation(self) -> ObservationSpec:
        """What every robot sees."""
        ...

    def send(self, weights: dict[str, FloatArray]) -> None:
        """Let them act with these weights of the acting network from now on; by chance until the first."""
        ...

    def receive(self, wait: bool) -> list[Experience]:
        """What has arrived since the last call; waits for the first of it if asked to."""
        ...

    def observe(self) -> Triplet:
        """What some of the robots saw last."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        ...

    def close(self) -> None:
        """Let go of the robots."""
        ...


@dataclass(frozen=True)
class FleetConfig:
    """A simulated fleet.

    Attributes:
        worlds: W simulated side by side.
        robots_per_world: robots that share one world; the batch is the product.
        world_lifetime: steps until a world gives way to the next one; 0 keeps it for ever.
        goal_distance: shortest and longest straight line from start to goal, metres.
        simulator: departures from the ideal.
        start_spacing: metres that a new start keeps from the footprints of the robots that are
            under way, where there is room for it: one that appears right in front of a robot
            cannot be avoided, and teaches only that.
        walkers: people who walk among the robots of each world.
    """

    worlds: int = 16
    robots_per_world: int = 8
    world_lifetime: int = 150
    goal_distance: tuple[float, float] = (2.0, 12.0)
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
    start_spacing: float = 1.0
    walkers: WalkerConfig = field(default_factory=WalkerConfig)

    def __post_init__(self) -> None:
        if self.worlds < 1 or self.robots_per_world < 1 or self.world_lifetime < 0:
            raise ValueError("worlds and robots_per_world must be at least 1, world_lifetime 0 or more")
        low, high = self.goal_distance
        if not 0.0 < low < high:
            raise ValueError(f"goal_distance {self.goal_distance} m, expected 0 < shortest < longest")
        if not 0.0 <= self.start_spacing < math.inf:
            raise ValueError(f"start_spacing is {self.start_spacing} m, expected 0 or more")


Mission = Callable[[int], tuple[DoubleArray, DoubleArray]]


class SimulatedFleet:
    """Robots in the embedded simulator, each with its own start and goal.

    Args:
        make_world: the world of each number 0, 1, 2, ...; the fleet goes through them.
        robot: what every robot is.
        observation: what it sees.
        task: rewards and ends of episodes; brought to the robot's steps by `task.suited_to`.
        config: sizes.
        seed: of starts, goals and noise.
        mission: start and goal ``(3,)`` in the world of a number, for benchmarks that prescribe them
            to a robot alone; otherwise they are drawn.
    """

    def __init__(
        self,
        make_world: WorldMaker,
        robot: RobotSpec,
        observation: ObservationSpec,
        task: TaskConfig,
        config: FleetConfig,
        seed: int,
        mission: Mission | None = None,
    ) -> None:
        if mission is not None and config.robots_per_world != 1:
            raise ValueError("a prescribed start and goal is for one robot a world")
        self._make_world, self._mission = make_world, mission
        self._robot, self._observation, self._config = robot, observation, config
        self._task = suited_to(task, robot)
        self._rng = np.random.default_rng(seed)
        self.world_numbers = list(range(config.worlds))
        worlds = [make_world(number) for number in self.world_numbers]
        self._spaces = [self._space(world) for world in worlds]
        walkers = config.walkers
        self.simulator = Simulator(
            worlds, robot, config.robots_per_world, config.simulator, seed, movers=Walkers.room(walkers)
        )
        self._walkers = Walkers(self.simulator, walkers, seed) if Walkers.room(walkers) else None
        n = self.simulator.num_robots
        lidar = robot.lidar
        self._resample = ScanResampler(
            observation,
            lidar.angle_min,
            lidar.angle_increment,
            lidar.beams,
            lidar.range_min,
            lidar.range_max,
            lidar.mount,
        )
        self._frames = FrameStack(observation, n)
        self._guide = guide_for(observation, n, config.simulator.threads)
        self.starts: DoubleArray = np.zeros((n, 3))
        self.goals: DoubleArray = np.zeros((n, 3))
        self._steps = np.zeros(n, dtype=np.int64)
        # Staggered, so that not all worlds change at once.
        self._ages = np.arange(config.worlds) * config.world_lifetime // config.worlds
        for world in range(config.worlds):
            self._place(world, np.arange(config.robots_per_world))
            if self._walkers:
                self._walkers.reset(world)
        self._current = self._triplets(self._frames.push(self._resample(self.simulator.scan())))

    @property
    def num_robots(self) -> int:
        """N."""
        return self.simulator.num_robots

    @property
    def robot(self) -> RobotSpec:
        """What every robot is."""
        return self._robot

    @property
    def observation(self) -> ObservationSpec:
        """What every robot sees."""
        return self._observation

    def observe(self) -> Triplet:
        """The triplets ``(N, ...)`` that the next actions are to answer."""
        return self._current

    def step(self, actions: FloatArray) -> StepResult:
        """Execute ``(N, 3)`` actions for one control period; ended episodes begin anew.

        ``info`` holds ``clearance`` (m), ``poses``, ``twists``, ``goals`` and ``starts`` as they
        were when the step ended, and ``episode_steps``.

        Raises:
            scanpilot.types.InvalidInput: an action is not finite.
        """
        result = self.advance(actions)
        expired = self._expired_worlds()
        result = replace(result, truncated=result.truncated | (self._in_worlds(expired) & ~result.terminated))
        self._current = self._begin_anew(result.terminated | result.truncated, expired, result.triplets)
        return result

    def advance(self, actions: FloatArray) -> StepResult:
        """`step` without new episodes: who is done stays where it is until `restart`, and so do worlds."""
        simulator = self.simulator
        executed = command.executed_actions(actions, self._robot)
        distance = self._goal_distance()
        if self._walkers:
            self._walkers.step(self._robot.control_period)
        contact = simulator.step(command.commands(executed, self._robot), self._robot.control_period)
        self._steps += 1
        clearance = simulator.clearance()
        outcome = judge(distance, self._goal_distance(), clearance, contact, self._steps, self._task)
        successors = self._triplets(self._frames.push(self._resample(simulator.scan())))
        self._current = successors
        return StepResult(
            triplets=successors,
            actions=executed,
            rewards=outcome.rewards,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            reached=outcome.reached,
            collided=outcome.collided,
            info={
                "clearance": clearance,
                "poses": simulator.poses.copy(),
                "twists": simulator.twists.copy(),
                "goals": self.goals.copy(),
                "starts": self.starts.copy(),
                "episode_steps": self._steps.copy(),
                "timed_out": outcome.truncated,
            },
        )

    def restart(self, robots: BoolArray, next_worlds: Sequence[int] = ()) -> Triplet:
        """Begin new episodes of some robots, whatever they were doing.

        Args:
            robots: ``(N,)`` which.
            next_worlds: indices of worlds that give way to the next ones first; all their robots must be
                among those that begin anew.

        Returns:
            What all robots see now.
        """
        self._ages[list(next_worlds)] = 0
        # Anew, for whoever was given what robots saw may have changed it since.
        seen = self._triplets(self._frames.frames.copy())
        self._current = self._begin_anew(robots, list(next_worlds), seen)
        return self._current

    def state_dict(self) -> dict[str, Any]:
        """Worlds, robots, episodes and random states: the fleet goes on to the last digit."""
        return {
            "rng": self._rng.bit_generator.state,
            "world_numbers": list(self.world_numbers),
            "simulator": self.simulator.state_dict(),
            "frames": self._frames.frames.copy(),
            "starts": self.starts,
            "goals": self.goals,
            "steps": self._steps,
            "ages": self._ages,
            **({"walkers": self._walkers.state_dict()} if self._walkers else {}),
            **({"guide": self._guide.memory} if self._guide else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave to a fleet made with the same arguments."""
        self._rng.bit_generator.state = state["rng"]
        self.world_numbers = [int(number) for number in state["world_numbers"]]
        worlds = [self._make_world(number) for number in self.world_numbers]
        self._spaces = [self._space(world) for world in worlds]
        self.simulator.set_worlds(range(len(worlds)), worlds)
        self.simulator.load_state_dict(state["simulator"])
        self.starts, self.goals, self._steps, self._ages = (
            np.array(state[name]) for name in ("starts", "goals", "steps", "ages")
        )
        if self._walkers:
            self._walkers.load_state_dict(state["walkers"])
        self._frames.restore(np.array(state["frames"]))
        if self._guide is not None:
            self._guide.restore(np.array(state["guide"]))
        self._current = self._triplets(self._frames.frames.copy())

    def close(self) -> None:
        """Nothing to let go of."""

    def world_of(self, robot: int) -> World:
        """The world that a robot is in."""
        return self.simulator.worlds[robot // self._config.robots_per_world]

    def space_of(self, robot: int) -> FreeSpace:
        """The free space of the world that a robot is in."""
        return self._spaces[robot // self._config.robots_per_world]

    def _space(self, world: World) -> FreeSpace:
        return FreeSpace(world, self._robot.footprint, turning_radius=self._robot.turning_radius)

    def _goal_distance(self) -> DoubleArray:
        offset = self.goals[:, :2] - self.simulator.poses[:, :2]
        return np.hypot(offset[:, 0], offset[:, 1])

    def _triplets(self, stacks: FloatArray, robots: Any = slice(None)) -> Triplet:
        """What these robots see, given their stacks."""
        simulator = self.simulator
        poses = simulator.poses[robots]
        seen = triplets_of(stacks, self.goals[robots], poses, simulator.twists[robots])
        if self._guide is None:
            return seen
        which = np.arange(self.num_robots)[robots]
        return replace(seen, guidance=self._guide(stacks[:, -1], seen.goal, poses, which))

    def _expired_worlds(self) -> list[int]:
        if not self._config.world_lifetime:
            return []
        self._ages += 1
        expired = np.flatnonzero(self._ages >= self._config.world_lifetime)
        self._ages[expired] = 0
        return [int(world) for world in expired]

    def _in_worlds(self, worlds: list[int]) -> BoolArray:
        inside = np.zeros((self._config.worlds, self._config.robots_per_world), dtype=np.bool_)
        inside[worlds] = True
        return inside.reshape(-1)

    def _begin_anew(self, ended: BoolArray, expired: list[int], successors: Triplet) -> Triplet:
        """Put robots whose episode ended at new starts; returns what all robots see then."""
        if not ended.any():
            return successors
        for world in expired:
            self._next_world(world)
        per_world = self._config.robots_per_world
        for world in np.unique(np.flatnonzero(ended) // per_world):
            own = np.flatnonzero(ended[world * per_world : (world + 1) * per_world])
            self._place(int(world), own)
            if self._walkers and world in expired:
                self._walkers.reset(int(world))
        robots = np.flatnonzero(ended)
        if self._guide is not None:
            self._guide.forget(robots)
        first = self._frames.restarted(robots, self._resample(self.simulator.scan(robots=robots)))
        return _replaced(successors, robots, self._triplets(first, robots))

    def _next_world(self, world: int) -> None:
        number = max(self.world_numbers) + 1
        self.world_numbers[world] = number
        made = self._make_world(number)
        self._spaces[world] = self._space(made)
        self.simulator.set_worlds([world], [made])

    def _place(self, world: int, members: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """New starts and goals for some robots of a world, clear of the others."""
        per_world = self._config.robots_per_world
        robots = world * per_world + members
        staying = np.setdiff1d(np.arange(per_world), members) + world * per_world
        taken, goals = self.simulator.poses[staying], self.goals[staying]
        if self._walkers:
            movers = self._walkers.movers[world]
            taken = np.concatenate((taken, movers[movers[:, 2] > 0.0]))
        for robot in robots:
            start, goal = self._sample(world, taken, goals)
            self.starts[robot], self.goals[robot] = start, goal
            taken, goals = np.concatenate((taken, start[None])), np.concatenate((goals, goal[None]))
        self.simulator.place(robots, self.starts[robots])
        self._steps[robots] = 0

    def _sample(self, world: int, taken: DoubleArray, goals: DoubleArray) -> tuple[DoubleArray, DoubleArray]:
        if self._mission is not None:
            return self._mission(self.world_numbers[world])
        low, high = self._config.goal_distance

        def at(spacing: float) -> tuple[DoubleArray, DoubleArray]:
            return self._spaces[world].sample(
                self._rng,
                min_distance=low,
                max_distance=high,
                taken=taken,
                taken_goals=goals,
                spacing=spacing,
            )

        try:
            return at(self._config.start_spacing)
        except NoRoom:
            return at(0.0)


def _replaced(triplets: Triplet, robots: np.ndarray[Any, np.dtype[np.int64]], others: Triplet) -> Triplet:
    """The triplets with those of some robots taken from others."""
    changed = {}
    for field_ in fields(triplets):
        values = getattr(triplets, field_.name)
        if values is not None:
            values = values.copy()
            values[robots] = getattr(others, field_.name)
        changed[field_.name] = values
    return Triplet(**changed)
