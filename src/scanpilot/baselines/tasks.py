"""What baselines learn on: ScanPilot or any Gymnasium id, as one kind of batch of environments.

Every task is N environments in step. Observations are vectors or images, actions vectors in [-1, 1] or
whole numbers; whoever ends begins anew in the same step, and what it saw last is told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from scanpilot import env as scanpilot_env
from scanpilot.command import active_components
from scanpilot.configuration import ConfigurationError
from scanpilot.observation import ObservationSpec, encode_scan, encode_state, observation_for
from scanpilot.resources import find
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.types import BoolArray, DoubleArray, FloatArray, Triplet

Array = NDArray[Any]


class Moved(NamedTuple):
    """What a step of N environments gave.

    Attributes:
        observations: ``(N, ...)`` to act on next.
        rewards: ``(N,)``.
        terminated, truncated: ``(N,)`` ended, without and with something to bootstrap from.
        last: ``(N, ...)`` what each saw at the end of the step; of those that go on, ``observations``.
        succeeded: ``(N,)`` ended at the goal; False where a task has none.
    """

    observations: Array
    rewards: DoubleArray
    terminated: BoolArray
    truncated: BoolArray
    last: Array
    succeeded: BoolArray


class Task(Protocol):
    """N environments in step."""

    @property
    def count(self) -> int:
        """N."""
        ...

    @property
    def observation_space(self) -> spaces.Box:
        """Of one of them."""
        ...

    @property
    def action_space(self) -> spaces.Box | spaces.Discrete:
        """Of one of them."""
        ...

    def reset(self, seed: int) -> Array:
        """Begin; the seed decides everything. Returns ``(N, ...)`` observations."""
        ...

    def step(self, actions: Array) -> Moved:
        """Let all act."""
        ...

    def close(self) -> None:
        """Let go of what they hold."""
        ...


@dataclass(frozen=True)
class TaskSpec:
    """Which task; travels in ``baseline.json``.

    Attributes:
        env: ``ScanPilot-v0`` or any Gymnasium id.
        discrete: for ScanPilot, whether actions are whole numbers; others have what they have.
        robot: for ScanPilot.
        world: generator of its worlds, the training stream of it.
        robots_per_world: that share a world, where there are so many.
        world_lifetime: steps until a world gives way to the next one.
        frames: scans stacked.
        beams: of the policy's scan.
    """

    env: str = scanpilot_env.ID
    discrete: bool = False
    robot: str = "generic_diff"
    world: str = "clutter"
    robots_per_world: int = 8
    world_lifetime: int = 150
    frames: int = 3
    beams: int = 180

    @property
    def is_scanpilot(self) -> bool:
        """Whether it is our own."""
        return self.env == scanpilot_env.ID

    @property
    def is_atari(self) -> bool:
        """Whether it is one of ale-py's."""
        return self.env.startswith("ALE/")


def make(spec: TaskSpec, count: int) -> Task:
    """So many environments of a task.

    Raises:
        ConfigurationError: there is no such environment, or its observations or actions are of a kind
            that baselines do not take.
    """
    return ScanPilotTask(spec, count) if spec.is_scanpilot else GymTask(spec, count)


# --- ScanPilot --------------------------------------------------------------------------------------------


class Translation:
    """Between triplets and executable actions on one side, vectors and baselines' actions on the other.

    The encoding is that of our own networks, so that algorithms are compared and not encodings.
    """

    def __init__(self, robot: RobotSpec, observation: ObservationSpec, discrete: bool) -> None:
        self._observation = observation
        self._active = np.flatnonzero(active_components(robot))
        self._table = _discrete_actions(bool(active_components(robot)[1])) if discrete else None
        size = observation.frames * observation.beams + 9
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space: spaces.Box | spaces.Discrete = (
            spaces.Box(-1.0, 1.0, (len(self._active),), np.float32)
            if self._table is None
            else spaces.Discrete(len(self._table))
        )

    def vectors(self, triplets: Triplet) -> FloatArray:
        """``(N, k * n + 9)`` encoded scans, goals and speeds."""
        scans = encode_scan(triplets.scan, np).reshape(len(triplets), -1)
        state = encode_state(triplets.goal, triplets.speed, self._observation, np)
        return np.concatenate((scans, state), axis=1).astype(np.float32)

    def actions(self, chosen: Array) -> FloatArray:
        """``(N, 3)`` actions: forward from [-1, 1] to [0, 1], components that move nothing 0."""
        if self._table is not None:
            table: FloatArray = self._table[np.asarray(chosen, dtype=np.int64)]
            return table
        full = np.zeros((len(chosen), 3), dtype=np.float32)
        full[:, self._active] = np.clip(chosen, -1.0, 1.0)
        full[:, 0] = 0.5 * (full[:, 0] + 1.0)
        return full


def _discrete_actions(sideways: bool) -> FloatArray:
    """Three forward speeds by five turns, and left and right for who can."""
    table = [(v, 0.0, w) for v in (0.0, 0.5, 1.0) for w in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    if sideways:
        table += [(0.0, 1.0, 0.0), (0.0, -1.0, 0.0)]
    return np.array(table, dtype=np.float32)


def robot_and_observation(spec: TaskSpec) -> tuple[RobotSpec, ObservationSpec]:
    """What drives in a ScanPilot task and what it sees."""
    robot = load_robot(find("robot", spec.robot))
    return robot, observation_for(robot, spec.beams, spec.frames)


class ScanPilotTask:
    """Robots of worlds of `scanpilot.env`, encoded."""

    def __init__(self, spec: TaskSpec, count: int) -> None:
        robot, observation = robot_and_observation(spec)
        self._spec, self.count = spec, count
        self._per_world = min(spec.robots_per_world, count)
        if count % self._per_world:
            raise ConfigurationError(f"{count} environments: expected a multiple of {self._per_world} robots")
        self._setting = scanpilot_env.Setting(
            scanpilot_env.Scenario(robot=robot, world=spec.world, observation=observation)
        )
        self._translation = Translation(robot, observation, spec.discrete)
        self.observation_space = self._translation.observation_space
        self.action_space = self._translation.action_space

    def reset(self, seed: int) -> Array:
        """Begin in new worlds."""
        worlds = self.count // self._per_world
        self._fleet = self._setting.fleet(worlds, self._per_world, self._spec.world_lifetime, seed)
        return self._translation.vectors(self._fleet.observe())

    def step(self, actions: Array) -> Moved:
        """Drive for a control period."""
        result = self._fleet.step(self._translation.actions(actions))
        return Moved(
            self._translation.vectors(self._fleet.observe()),
            result.rewards.astype(np.float64),
            result.terminated,
            result.truncated,
            self._translation.vectors(result.triplets),
            result.reached,
        )

    def close(self) -> None:
        """Nothing to let go of."""


# --- Gymnasium --------------------------------------------------------------------------------------------


class GymTask:
    """Environments of a Gymnasium id; ale-py's games are cut to 80 by 80 grey points, four frames stacked."""

    def __init__(self, spec: TaskSpec, count: int) -> None:
        self.count = count
        makers = [lambda: _gym(spec) for _ in range(count)]
        self._envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        seen, done = self._envs.single_observation_space, self._envs.single_action_space
        if not isinstance(seen, spaces.Box):
            raise ConfigurationError(f"{spec.env} gives {seen}, expected a box of numbers")
        if not isinstance(done, spaces.Box | spaces.Discrete):
            raise ConfigurationError(f"{spec.env} takes {done}, expected a box or one whole number")
        self.observation_space = seen
        self._bounds: tuple[Array, Array] | None = None
        self.action_space: spaces.Box | spaces.Discrete = done
        if isinstance(done, spaces.Box):
            if not (np.isfinite(done.low).all() and np.isfinite(done.high).all()):
                raise ConfigurationError(f"{spec.env} takes actions without bounds: {done}")
            self._bounds = (done.low, done.high)
            self.action_space = spaces.Box(-1.0, 1.0, done.shape, np.float32)

    def reset(self, seed: int) -> Array:
        """Begin."""
        observations, _ = self._envs.reset(seed=seed)
        return cast(Array, observations)

    def step(self, actions: Array) -> Moved:
        """Let all act."""
        if self._bounds is not None:
            low, high = self._bounds
            actions = (low + 0.5 * (np.clip(actions, -1.0, 1.0) + 1.0) * (high - low)).astype(np.float32)
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        last = np.array(observations)
        ended = terminated | truncated
        for index in np.flatnonzero(ended):
            last[index] = infos["final_obs"][index]
        return Moved(observations, rewards, terminated, truncated, last, np.zeros(self.count, np.bool_))

    def close(self) -> None:
        """Close them."""
        self._envs.close()


def _gym(spec: TaskSpec) -> gymnasium.Env[Any, Any]:
    if not spec.is_atari:
        try:
            return gymnasium.make(spec.env)
        except gymnasium.error.Error as error:
            raise ConfigurationError(f"--env {spec.env}: {error}") from error
    try:
        import ale_py
    except ImportError as error:
        raise ConfigurationError(f"--env {spec.env} needs ale-py: pip install 'scanpilot[atari]'") from error
    gymnasium.register_envs(ale_py)
    game = gymnasium.make(spec.env, obs_type="grayscale", frameskip=4, repeat_action_probability=0.0)
    return gymnasium.wrappers.FrameStackObservation(_Small(game), 4)


class _Small(gymnasium.ObservationWrapper[Array, Any, Array]):
    """The 160 by 160 points of the playing field, every other one of each row and column."""

    def __init__(self, game: gymnasium.Env[Any, Any]) -> None:
        super().__init__(game)
        self.observation_space = spaces.Box(0, 255, (80, 80), np.uint8)

    def observation(self, observation: Array) -> Array:
        """``(80, 80)`` of ``(210, 160)``."""
        # A ball two points wide must not fall between: the brighter of two rows is kept.
        field = observation[34:194]
        return np.maximum(field[::2, ::2], field[1::2, ::2])
