"""The task as Gymnasium environments; importing this module registers ``ScanPilot-v0``.

    env = gymnasium.make("scanpilot.env:ScanPilot-v0", robot="generic_omni", world="maze")
    envs = gymnasium.make_vec("scanpilot.env:ScanPilot-v0", num_envs=1024, robots_per_world=8)

The part before the colon is the module that Gymnasium imports first; after ``import scanpilot.env``
the plain id does. All keywords are the fields of `Scenario`. Gymnasium is needed here and nowhere
below: `scanpilot[gym]` installs it.

What happens in a step is `fleet`'s business; this module only translates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from scanpilot import resources
from scanpilot.command import ACTION_HIGH, ACTION_LOW
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.sim import sources
from scanpilot.sim.live_view import LiveView
from scanpilot.sim.simulator import SimulatorConfig
from scanpilot.sim.sources import Stream, WorldMaker
from scanpilot.task import TaskConfig
from scanpilot.types import BoolArray, DoubleArray, FloatArray, StepResult, Triplet

ID = "ScanPilot-v0"
RENDER_MODES = ["human", "rgb_array"]
# What Gymnasium asks the classes; each environment has its own robot's frame rate.
METADATA: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": 5}

Observation = dict[str, FloatArray]
Info = dict[str, Any]
Image = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Scenario:
    """Which robot drives where, to what end; the keywords of every environment.

    Attributes:
        robot: name of a shipped robot, its YAML file, or a specification.
        world: a generator's name, name of a shipped world, a world file, or a function from the
            numbers 0, 1, 2, ... to worlds.
        stream: which worlds of a generator: those of training, validation or test.
        observation: what robots see; by default what suits the robot.
        task: rewards and ends of episodes. Its time limit truncates; no wrapper is needed for that.
        goal_distance: shortest and longest straight line from start to goal, metres.
        world_lifetime: steps until a world gives way to the next one; 0 keeps it for ever. With one
            world it does so between two episodes; among many it truncates those of its robots.
        simulator: departures from the ideal.
    """

    robot: str | Path | RobotSpec = "generic_diff"
    world: str | Path | WorldMaker = "clutter"
    stream: Stream = "training"
    observation: ObservationSpec | None = None
    task: TaskConfig = field(default_factory=TaskConfig)
    goal_distance: tuple[float, float] = (2.0, 12.0)
    world_lifetime: int = 600
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)


class Setting:
    """A scenario with its files read: makes fleets from seeds, and knows their spaces.

    Raises:
        FileNotFoundError: no such robot or world.
        scanpilot.configuration.ConfigurationError: the robot's file is wrong.
        scanpilot.sim.world.WorldFileError: the world's file is wrong.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        robot = scenario.robot
        self.robot = robot if isinstance(robot, RobotSpec) else load_robot(resources.find("robot", robot))
        self.observation = scenario.observation or observation_for(self.robot)
        self._worlds_of = _worlds_of(scenario)

    def fleet(self, worlds: int, robots_per_world: int, world_lifetime: int, seed: int) -> SimulatedFleet:
        """Robots that begin their first episodes; the seed decides everything."""
        s = self.scenario
        sizes = FleetConfig(worlds, robots_per_world, world_lifetime, s.goal_distance, s.simulator)
        return SimulatedFleet(self._worlds_of(seed), self.robot, self.observation, s.task, sizes, seed)

    def observation_space(self) -> spaces.Space[Observation]:
        """A `Triplet` of one robot, in its units; every bound is finite and holds."""
        spec, limits = self.observation, self.robot.limits
        # As far as a robot can get from its goal, even where nothing bounds the world.
        ways = self.scenario.task.time_limit * self.robot.control_period * math.hypot(limits.vx, limits.vy)
        reach = self.scenario.goal_distance[1] + ways
        goal = np.array([reach, reach, math.pi], dtype=np.float32)
        # Gymnasium wants an interval even for the sideways speed of a robot that has none.
        speed = np.array([limits.vx, limits.vy or 1.0, limits.wz], dtype=np.float32)
        space = spaces.Dict(
            scan=spaces.Box(spec.range_min, spec.range_max, spec.scan_shape, np.float32),
            goal=spaces.Box(-goal, goal, dtype=np.float32),
            speed=spaces.Box(-speed, speed, dtype=np.float32),
        )
        return cast("spaces.Space[Observation]", space)

    @property
    def frame_rate(self) -> int:
        """Pictures a second that play at the robot's own pace."""
        return max(1, round(1.0 / self.robot.control_period))

    def view(self, window: bool) -> LiveView:
        """A picture to draw these robots into."""
        spec = self.observation
        return LiveView(self.robot.footprint, spec.angles, spec.range_max, window)


def _worlds_of(scenario: Scenario) -> Callable[[int], WorldMaker]:
    """From a seed to its worlds."""
    world = scenario.world
    if callable(world):
        return lambda _seed: world
    if str(world) in sources.GENERATORS:
        return lambda seed: sources.worlds(str(world), scenario.stream, seed)
    # A file is read here, once, so that a mistake in it is found at once.
    maker = sources.worlds(str(resources.find("world", world)), scenario.stream, 0)
    return lambda _seed: maker


def action_space() -> spaces.Space[FloatArray]:
    """Forward in [0, 1], lateral and yaw rate in [-1, 1]: fractions of the robot's limits."""
    return cast("spaces.Space[FloatArray]", spaces.Box(ACTION_LOW, ACTION_HIGH, dtype=np.float32))


def check_render_mode(render_mode: str | None) -> str | None:
    """The mode, if it is one.

    Raises:
        ValueError: it is none.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode {render_mode!r}, expected one of {', '.join(RENDER_MODES)}")
    return render_mode


class Arena:
    """One world and the robots in it, from reset to reset; the common part of what has one world.

    Args:
        setting: what drives where.
        robots: R.
        render_mode: as the environment's.
    """

    def __init__(self, setting: Setting, robots: int, render_mode: str | None) -> None:
        self._setting, self._robots = setting, robots
        self.render_mode = check_render_mode(render_mode)
        self._fleet: SimulatedFleet | None = None
        self._view: LiveView | None = None
        self._age = 0

    def reset(self, rng: np.random.Generator, seeded: bool) -> Triplet:
        """Begin new episodes; a world that has served its time gives way to the next one.

        Args:
            rng: just seeded, if so.
            seeded: forget everything that was, so that the same seed gives the same.
        """
        if self._fleet is None or seeded:
            self._fleet = self._setting.fleet(1, self._robots, 0, int(rng.integers(1 << 31)))
            self._age = 0
            triplets = self._fleet.observe()
        else:
            expired = 0 < self._setting.scenario.world_lifetime <= self._age
            self._age = 0 if expired else self._age
            everyone = np.ones(self._robots, dtype=np.bool_)
            triplets = self._fleet.restart(everyone, next_worlds=[0] if expired else [])
        self._show()
        return triplets

    def advance(self, actions: FloatArray) -> StepResult:
        """One control period; robots whose episode ended stay where they are.

        Raises:
            ResetNeeded: there was no reset.
            ValueError: the actions are not ``(R, 3)`` finite numbers.
        """
        result = self.fleet.advance(as_actions(actions, self._robots))
        self._age += 1
        self._show()
        return result

    @property
    def fleet(self) -> SimulatedFleet:
        """The robots.

        Raises:
            ResetNeeded: there was no reset.
        """
        if self._fleet is None:
            raise ResetNeeded("call reset() before step() and render()")
        return self._fleet

    def render(self) -> Image | None:
        """What is now, as an image, in the mode for that."""
        fleet = self.fleet
        if self.render_mode is None:
            return None
        if self._view is None:
            self._view = self._setting.view(self.render_mode == "human")
        draw(self._view, fleet, 0, self._robots)
        return self._view.image() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the window."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()
            assert self._view is not None
            self._view.show(self._setting.robot.control_period)


def as_actions(actions: FloatArray, count: int) -> FloatArray:
    """Actions as `fleet` takes them.

    Raises:
        ValueError: they are not ``(count, 3)``.
    """
    array = np.asarray(actions, dtype=np.float32)
    if array.shape != (count, 3):
        raise ValueError(f"actions have shape {array.shape}, expected ({count}, 3)")
    return array


def draw(view: LiveView, fleet: SimulatedFleet, first: int, count: int) -> None:
    """Draw some robots of one world as they are now."""
    robots = slice(first, first + count)
    scans = fleet.observe().scan[robots, -1]
    view.draw(fleet.world_of(first), fleet.simulator.poses[robots], fleet.goals[robots], scans)


def observations(triplets: Triplet) -> Observation:
    """Triplets as the observation space names them."""
    return {"scan": triplets.scan, "goal": triplets.goal, "speed": triplets.speed}


def reset_infos(fleet: SimulatedFleet) -> dict[str, DoubleArray]:
    """Batches of what is told of robots that begin: ``pose`` and ``goal_pose`` in the world frame."""
    return {"pose": fleet.simulator.poses.copy(), "goal_pose": fleet.goals.copy()}


def step_infos(result: StepResult) -> dict[str, np.ndarray[Any, Any]]:
    """Batches of what is told of robots that made a step.

    ``pose`` and ``goal_pose`` in the world frame, ``clearance`` from the nearest obstacle in metres,
    ``executed_action``, ``is_success`` (at the goal; the name that stable-baselines3 looks for) and
    ``collided``.
    """
    return {
        "pose": np.array(result.info["poses"]),
        "goal_pose": np.array(result.info["goals"]),
        "clearance": np.array(result.info["clearance"]),
        "executed_action": result.actions,
        "is_success": result.reached,
        "collided": result.collided,
    }


def of_robot(batch: dict[str, np.ndarray[Any, Any]], robot: int) -> Info:
    """One robot's share of a batch of infos; numbers become Python's."""
    rows = ((key, values[robot]) for key, values in batch.items())
    return {key: row.copy() if row.ndim else row.item() for key, row in rows}


class ScanPilotEnv(gymnasium.Env[Observation, FloatArray]):
    """One robot alone in a world; see `Scenario` for the keywords.

    An unseeded reset begins a new episode in the same world, until that has served its lifetime.
    """

    metadata = METADATA

    def __init__(self, render_mode: str | None = None, **scenario: Any) -> None:
        setting = Setting(Scenario(**scenario))
        self.metadata = {**self.metadata, "render_fps": setting.frame_rate}
        self.render_mode = render_mode
        self._arena = Arena(setting, 1, render_mode)
        self.observation_space = setting.observation_space()
        self.action_space = action_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode; the seed decides the world and everything after. There are no options."""
        super().reset(seed=seed)
        triplet = self._arena.reset(self.np_random, seed is not None)[0]
        return observations(triplet), of_robot(reset_infos(self._arena.fleet), 0)

    def step(self, action: FloatArray) -> tuple[Observation, float, bool, bool, Info]:
        """Drive for one control period.

        Raises:
            ResetNeeded: there was no reset.
            ValueError: the action is not ``(3,)`` finite numbers.
        """
        result = self._arena.advance(np.asarray(action)[None])
        return (
            observations(result.triplets[0]),
            float(result.rewards[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            of_robot(step_infos(result), 0),
        )

    def render(self) -> Image | None:
        """An image ``(480, 480, 3)``, or None: a window shows itself at every step."""
        return self._arena.render()

    def close(self) -> None:
        """Close the window."""
        self._arena.close()


class ScanPilotVectorEnv(gymnasium.vector.VectorEnv[Observation, FloatArray, np.ndarray[Any, Any]]):
    """Robots of many worlds at once, each an environment; those of one world see and hit each other.

    An episode that ends is followed by the next one in the same step; ``final_obs`` and
    ``final_info`` hold what it ended with, laid out as `gymnasium.vector.SyncVectorEnv` does.

    Args:
        num_envs: N robots.
        robots_per_world: that share a world; must divide N.
        render_mode: ``rgb_array`` gives an image of its world for each robot; a window shows the first.
        scenario: see `Scenario`.
    """

    metadata = METADATA | {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self, num_envs: int = 1, robots_per_world: int = 1, render_mode: str | None = None, **scenario: Any
    ) -> None:
        # First, because Gymnasium closes even what was never made.
        self._views: dict[int, LiveView] = {}
        if robots_per_world < 1 or num_envs < 1 or num_envs % robots_per_world:
            raise ValueError(
                f"num_envs {num_envs} is not a positive multiple of robots_per_world {robots_per_world}"
            )
        self._setting = Setting(Scenario(**scenario))
        self.metadata = {**self.metadata, "render_fps": self._setting.frame_rate}
        self.num_envs, self._per_world = num_envs, robots_per_world
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = self._setting.observation_space()
        self.single_action_space = action_space()
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._fleet: SimulatedFleet | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode of every robot, or of those of the option ``reset_mask``, bool ``(N,)``.

        A seed decides everything, and so makes all robots begin.

        Raises:
            ValueError: the mask is of another shape or type, or comes with a seed or before a full reset.
        """
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            self._check_mask(mask, seed)
        if self._fleet is None or seed is not None:
            worlds, lifetime = self.num_envs // self._per_world, self._setting.scenario.world_lifetime
            number = int(self.np_random.integers(1 << 31))
            self._fleet = self._setting.fleet(worlds, self._per_world, lifetime, number)
        else:
            self._fleet.restart(np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask)
        self._show()
        begun = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        return observations(self._fleet.observe()), _masked(reset_infos(self._fleet), begun)

    def step(
        self, actions: FloatArray
    ) -> tuple[Observation, DoubleArray, BoolArray, BoolArray, dict[str, Any]]:
        """Drive all robots for one control period.

        Raises:
            ResetNeeded: there was no reset.
            ValueError: the actions are not ``(N, 3)`` finite numbers.
        """
        fleet = self._begun()
        result = fleet.step(as_actions(actions, self.num_envs))
        self._show()
        return (
            observations(fleet.observe()),
            result.rewards.astype(np.float64),
            result.terminated,
            result.truncated,
            _infos(result, fleet),
        )

    def render(self) -> tuple[Image, ...] | None:
        """An image ``(480, 480, 3)`` for each robot, the same one for those of one world."""
        fleet = self._begun()
        if self.render_mode != "rgb_array":
            return None
        images: list[Image] = []
        for first in range(0, self.num_envs, self._per_world):
            images += [self._draw(fleet, first).image()] * self._per_world
        return tuple(images)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the window."""
        for view in self._views.values():
            view.close()
        self._views.clear()

    def _begun(self) -> SimulatedFleet:
        if self._fleet is None:
            raise ResetNeeded("call reset() before step() and render()")
        return self._fleet

    def _check_mask(self, mask: Any, seed: int | None) -> None:
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise ValueError(f"reset_mask must be a bool array of shape ({self.num_envs},)")
        if seed is not None or self._fleet is None:
            raise ValueError("reset_mask goes with neither a seed nor a first reset: they begin all robots")

    def _draw(self, fleet: SimulatedFleet, first: int) -> LiveView:
        view = self._views.get(first)
        if view is None:
            view = self._views[first] = self._setting.view(self.render_mode == "human")
        draw(view, fleet, first, self._per_world)
        return view

    def _show(self) -> None:
        if self.render_mode == "human":
            self._draw(self._begun(), 0).show(self._setting.robot.control_period)


def _infos(result: StepResult, fleet: SimulatedFleet) -> dict[str, Any]:
    """Gymnasium's layout: each array with a mask of whom it speaks for; the ended ones' apart."""
    ended = result.terminated | result.truncated
    told = step_infos(result)
    infos = _masked({**told, **reset_infos(fleet)}, ~ended)
    for key in reset_infos(fleet):
        infos[f"_{key}"] = np.ones_like(ended)
    if not ended.any():
        return infos
    last = np.full(len(ended), None, dtype=object)
    for robot in np.flatnonzero(ended):
        last[robot] = observations(result.triplets[int(robot)])
    infos.update(final_obs=last, _final_obs=ended.copy(), final_info=_masked(told, ended))
    infos["_final_info"] = ended.copy()
    return infos


def _masked(batch: dict[str, np.ndarray[Any, Any]], of: BoolArray) -> dict[str, Any]:
    """Infos with their masks; zero for whom they do not speak."""
    infos: dict[str, Any] = {}
    for key, values in batch.items():
        infos[key] = np.where(of.reshape(-1, *[1] * (values.ndim - 1)), values, np.zeros_like(values))
        infos[f"_{key}"] = of.copy()
    return infos


gymnasium.register(
    ID, entry_point="scanpilot.env:ScanPilotEnv", vector_entry_point="scanpilot.env:ScanPilotVectorEnv"
)
