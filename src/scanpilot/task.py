"""The task: reach the goal without contact. One function per term of the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scanpilot.robot import RobotSpec
from scanpilot.types import BoolArray, DoubleArray, FloatArray

# What the numbers per step below are for: a robot that goes 1 m/s for a control period of 0.2 s.
_STEP = 0.2


@dataclass(frozen=True)
class TaskConfig:
    """Weights and bounds of the task.

    What is said per step is said for a robot that goes 0.2 m in a step; see `suited_to`.

    Attributes:
        goal_radius: metres; nearer than this the goal is reached.
        time_limit: steps after which an episode is truncated.
        progress: reward per metre nearer to the goal.
        goal: reward for reaching it.
        collision: reward (negative) for contact.
        time: reward (negative) per step. Small beside ``collision`` teaches standing
            still: watch the time-outs.
        near: reward (negative) per step, growing linearly from 0 at ``near_distance`` to
            this at contact.
        near_distance: metres of clearance.
    """

    goal_radius: float = 0.3
    time_limit: int = 300
    progress: float = 2.0
    goal: float = 15.0
    collision: float = -15.0
    time: float = -0.06
    near: float = -0.8
    near_distance: float = 0.15

    def __post_init__(self) -> None:
        if not self.goal_radius > 0.0 or self.time_limit < 1 or not self.near_distance > 0.0:
            raise ValueError("goal_radius, time_limit and near_distance must be positive")


def suited_to(config: TaskConfig, robot: RobotSpec) -> TaskConfig:
    """The same task for a robot whose steps are longer or shorter.

    Else a slow robot would time out before it could arrive, and each metre towards the goal would cost it
    more time than it earns: the time limit is as far as it is for others in metres driven at full speed,
    and so is what every step costs.
    """
    scale = robot.limits.vx * robot.control_period / _STEP
    return replace(
        config,
        time_limit=math.ceil(config.time_limit / scale),
        time=config.time * scale,
        near=config.near * scale,
    )


def return_bound(config: TaskConfig, farthest: float, gamma: float) -> float:
    """What no discounted return goes beyond, either way, where goals are at most ``farthest`` metres away."""
    driven = config.progress * farthest
    per_step = abs(config.time) + abs(config.near)
    return max(abs(config.goal), abs(config.collision)) + driven + per_step / (1.0 - gamma)


def progress_reward(distance: DoubleArray, next_distance: DoubleArray, config: TaskConfig) -> DoubleArray:
    """(N,) for metres gained towards the goal."""
    return config.progress * (distance - next_distance)


def goal_reward(reached: BoolArray, config: TaskConfig) -> DoubleArray:
    """(N,) for arriving."""
    return np.where(reached, config.goal, 0.0)


def collision_reward(collided: BoolArray, config: TaskConfig) -> DoubleArray:
    """(N,) for touching something."""
    return np.where(collided, config.collision, 0.0)


def time_reward(count: int, config: TaskConfig) -> DoubleArray:
    """(N,) for every step."""
    return np.full(count, config.time)


def near_reward(clearance: DoubleArray, config: TaskConfig) -> DoubleArray:
    """(N,) for passing close to something; ``clearance`` from the footprint, metres."""
    return config.near * np.clip(1.0 - clearance / config.near_distance, 0.0, 1.0)


@dataclass(frozen=True)
class Outcome:
    """What a step was worth and whether it ended the episode; all ``(N,)``."""

    rewards: FloatArray
    reached: BoolArray
    collided: BoolArray
    truncated: BoolArray

    @property
    def terminated(self) -> BoolArray:
        """Ended by goal or contact, so that nothing follows to bootstrap from."""
        return self.reached | self.collided


def judge(
    distance: DoubleArray,
    next_distance: DoubleArray,
    clearance: DoubleArray,
    contact: BoolArray,
    steps: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    config: TaskConfig,
) -> Outcome:
    """Judge one step of N robots.

    Args:
        distance, next_distance: to the goal before and after the step, metres.
        clearance: from footprint to the nearest obstacle after the step, metres.
        contact: touched something during the step.
        steps: steps of the episode taken, this one included.
        config: the task.
    """
    collided = contact
    reached = (next_distance < config.goal_radius) & ~collided
    truncated = (steps >= config.time_limit) & ~collided & ~reached
    rewards = (
        progress_reward(distance, next_distance, config)
        + goal_reward(reached, config)
        + collision_reward(collided, config)
        + time_reward(len(distance), config)
        + near_reward(clearance, config)
    )
    return Outcome(rewards.astype(np.float32), reached, collided, truncated)
