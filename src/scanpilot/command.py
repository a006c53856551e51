"""From network actions to this robot's velocity command, and back.

An action is float32 ``(3,)``: forward in [0, 1], lateral and yaw rate in [-1, 1]. The limits of
acceleration belong to the robot: the simulated base obeys them from its actual velocity, and
`RateLimiter` gives a real robot's command the same shape. Therefore the action that is stored
and learned from is the clipped, kinematically possible target, not the rate-limited one: were
it the latter, the critic would never see the actions the policy asks for.
"""

from __future__ import annotations

import math

import numpy as np

from scanpilot.robot import Limits, RobotSpec
from scanpilot.types import ZERO_TWIST, BoolArray, DoubleArray, FloatArray, InvalidInput, Twist2D

ACTION_LOW = np.array([0.0, -1.0, -1.0], dtype=np.float32)
ACTION_HIGH = np.array([1.0, 1.0, 1.0], dtype=np.float32)


def active_components(robot: RobotSpec) -> BoolArray:
    """(3,) which components of an action move this robot at all."""
    return np.array([True, robot.kinematics == "omnidirectional", True])


def executed_actions(actions: FloatArray, robot: RobotSpec) -> FloatArray:
    """What of ``(..., 3)`` actions the robot can do: clipped, lateral 0 unless it can, a car's turn bounded.

    Raises:
        InvalidInput: an action is not finite.
    """
    if not np.isfinite(actions).all():
        raise InvalidInput("action is not finite")
    clipped: FloatArray = np.clip(np.asarray(actions, dtype=np.float32), ACTION_LOW, ACTION_HIGH)
    # Adding zero turns -0.0 into 0.0.
    clipped = clipped * active_components(robot).astype(np.float32) + np.float32(0.0)
    if robot.kinematics == "car":
        bound = clipped[..., 0] * np.float32(turn_per_forward(robot))
        clipped[..., 2] = np.clip(clipped[..., 2], -bound, bound)
    return clipped


def random_actions(rng: np.random.Generator, count: int) -> FloatArray:
    """``(count, 3)`` drawn evenly from all actions."""
    actions: FloatArray = ACTION_LOW + rng.random((count, 3), dtype=np.float32) * (ACTION_HIGH - ACTION_LOW)
    return actions


def turn_per_forward(robot: RobotSpec) -> float:
    """A car's largest yaw-rate action per unit of its forward action, since ``|wz| <= vx / r``; else inf."""
    if robot.kinematics != "car":
        return math.inf
    return robot.limits.vx / (robot.turning_radius * robot.limits.wz)


def commands(actions: FloatArray, robot: RobotSpec) -> DoubleArray:
    """``(..., 3)`` velocity commands vx, vy (m/s), wz (rad/s) of executed actions."""
    return np.asarray(actions, dtype=np.float64) * _scale(robot.limits)


def actions_of(velocities: DoubleArray, robot: RobotSpec) -> FloatArray:
    """``(..., 3)`` actions whose commands come nearest to these velocities; inverse of `commands`."""
    scale = _scale(robot.limits)
    actions = np.divide(velocities, scale, out=np.zeros_like(velocities, dtype=np.float64), where=scale > 0.0)
    return executed_actions(actions.astype(np.float32), robot)


def _scale(limits: Limits) -> DoubleArray:
    return np.array([limits.vx, limits.vy, limits.wz])


def tightened(limits: Limits, **tighter: float | None) -> Limits:
    """Limits with some replaced by tighter ones; ``None`` leaves one as it is.

    Raises:
        InvalidInput: a value is wider than the limit it replaces, or is not a positive number.
    """
    values = {name: getattr(limits, name) for name in ("vx", "vy", "wz", "ax", "ay", "awz")}
    for name, value in tighter.items():
        if value is None:
            continue
        if not value > 0.0 and not (name == "vy" and value == 0.0):
            raise InvalidInput(f"limit {name} = {value}, expected a positive number")
        if value > values[name]:
            raise InvalidInput(
                f"limit {name} = {value} is wider than the {values[name]} the policy was trained with: "
                "limits may only be tightened"
            )
        values[name] = value
    return Limits(**values)


class RateLimiter:
    """Bounds a command to the robot's limits of speed, acceleration and jerk.

    It shapes commands to drive. A stop, and whatever a guard takes away, is never bounded: such a
    command is not asked for here but told by `reset`.

    Args:
        limits: of speed and acceleration.
        turning_radius: of a car, metres: while it gathers speed it cannot turn as fast as it may later.
        jerk: fastest changes of the accelerations in x, y and yaw, m/s^3 and rad/s^3.
        reverse: fastest speed backwards, m/s; policies have none.
    """

    def __init__(
        self,
        limits: Limits,
        turning_radius: float = 0.0,
        jerk: tuple[float, float, float] = (math.inf, math.inf, math.inf),
        reverse: float = 0.0,
    ) -> None:
        self._limits = limits
        self._turning_radius = turning_radius
        self._jerk = jerk
        self._reverse = reverse
        self.reset()

    def reset(self, twist: Twist2D = ZERO_TWIST) -> None:
        """Go on from this command, m/s and rad/s, cut to the limits; after a stop that is zero."""
        self._last = _within(twist, self._limits, self._reverse)
        self._rates = (0.0, 0.0, 0.0)

    def preview(self, target: Twist2D, period: float) -> Twist2D:
        """What calling this would give, without going on from it.

        Raises:
            InvalidInput: the target is not finite, or the period not positive.
        """
        if not target.is_finite() or not period > 0.0:
            raise InvalidInput(
                f"command {tuple(target)} over {period} s: expected finite numbers, period > 0"
            )
        limits, wanted = self._limits, _within(target, self._limits, self._reverse)
        accelerations = (limits.ax, limits.ay, limits.awz)
        bounds = zip(self._last, self._rates, wanted, accelerations, self._jerk, strict=True)
        smooth = Twist2D(*(_approach(*bound, period) for bound in bounds))
        vx, vy, wz = _within(smooth, limits, self._reverse)
        if self._turning_radius > 0.0:
            bound = abs(vx) / self._turning_radius
            wz = min(max(wz, -bound), bound)
        return Twist2D(vx, vy, wz)

    def __call__(self, target: Twist2D, period: float) -> Twist2D:
        """The command nearest to ``target`` that ``period`` seconds after the last one allows.

        Raises:
            InvalidInput: the target is not finite, or the period not positive.
        """
        sent = self.preview(target, period)
        x, y, w = ((new - old) / period for new, old in zip(sent, self._last, strict=True))
        self._last, self._rates = sent, (x, y, w)
        return sent


def _within(twist: Twist2D, limits: Limits, reverse: float) -> Twist2D:
    """Cut to the limits of speed."""
    return Twist2D(
        min(max(twist.vx, -reverse), limits.vx),
        min(max(twist.vy, -limits.vy), limits.vy),
        min(max(twist.wz, -limits.wz), limits.wz),
    )


def _approach(
    last: float, rate: float, target: float, acceleration: float, jerk: float, period: float
) -> float:
    """One component, a period later: towards the target, with bounded acceleration and jerk.

    With a rate ``a`` that then falls by ``jerk`` a second, ``a (a + jerk period) / (2 jerk)`` are still
    gained: the largest rate for which that is not more than the gap arrives without overshooting.
    """
    if math.isinf(jerk):
        return _towards(last, target, acceleration * period)
    gap, half = target - last, 0.5 * jerk * period
    best = min(acceleration, abs(gap) / period, math.sqrt(half * half + 2.0 * jerk * abs(gap)) - half)
    return last + period * _towards(rate, math.copysign(best, gap), jerk * period)


def _towards(last: float, target: float, step: float) -> float:
    if math.isinf(step):
        return target
    return min(max(target, last - step), last + step)
