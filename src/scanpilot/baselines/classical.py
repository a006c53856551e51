"""A dynamic-window controller (Fox, Burgard and Thrun 1997): no learning, no map, no memory.

It tries the velocities that the robot can reach within one period, follows each along its arc, leaves out
those after which it could not stop before what the scan shows, and takes the best by a weighted sum of
progress, clearance and speed. Straight-to-goal, the other classical controller, is
`scanpilot.evaluation.difficulty`'s yardstick behind the guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from scanpilot import command
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.types import DoubleArray, FloatArray, Triplet


@dataclass(frozen=True)
class WindowConfig:
    """Weights and sizes of the dynamic window.

    Attributes:
        horizon: seconds that each velocity is followed.
        step: seconds between two poses on the way.
        forward, lateral, turn: velocities tried in each component (lateral: omnidirectional robots only).
        progress: weight of metres gained towards the goal.
        heading: weight of the bearing of the goal at the end of the way, radians.
        clearance: weight of the smallest distance on the way, metres, up to ``clear``.
        speed: weight of the speed over the fastest.
        clear: metres beyond which more distance is no gain.
        margin: metres kept free around the footprint.
        brake: part of the robot's deceleration that stopping counts on.
    """

    horizon: float = 1.6
    step: float = 0.1
    forward: int = 7
    lateral: int = 5
    turn: int = 15
    progress: float = 1.0
    heading: float = 0.25
    clearance: float = 1.2
    speed: float = 0.2
    clear: float = 0.4
    margin: float = 0.05
    brake: float = 0.8


class DynamicWindow:
    """Acts on triplets of a robot that sees ``observation``.

    Args:
        robot: gives limits, accelerations, footprint and period.
        observation: of the triplets.
        config: weights.
    """

    def __init__(
        self, robot: RobotSpec, observation: ObservationSpec, config: WindowConfig | None = None
    ) -> None:
        self._robot, self._observation = robot, observation
        self._config = config or WindowConfig()
        angles = observation.angles
        self._directions = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        corners = robot.footprint.polygon
        self._polygon = np.array(corners if corners else np.zeros((0, 2)), dtype=np.float64)

    def act(self, triplet: Triplet) -> FloatArray:
        """``(N, ...)`` triplets to ``(N, 3)`` actions, or one to ``(3,)``."""
        batch = triplet.batched()
        velocities = np.zeros((len(batch), 3))
        for robot in range(len(batch)):
            velocities[robot] = self._choose(
                batch.scan[robot, -1].astype(np.float64),
                batch.goal[robot].astype(np.float64),
                batch.speed[robot].astype(np.float64),
            )
        actions = command.actions_of(velocities, self._robot)
        return actions if triplet.scan.ndim == 3 else actions[0]

    def _choose(self, scan: DoubleArray, goal: DoubleArray, speed: DoubleArray) -> DoubleArray:
        c, limits = self._config, self._robot.limits
        reach = limits.vx * (c.horizon + limits.vx / (2.0 * c.brake * limits.ax)) + c.clear + 1.0
        near = scan < min(reach, self._observation.range_max)
        points = np.ascontiguousarray(scan[near, None] * self._directions[near])
        best = np.zeros(3)
        _search(
            points,
            self._polygon,
            self._robot.footprint.circumscribed_radius,
            goal,
            self._window(speed),
            np.array([c.horizon, c.step, c.clear, c.margin]),
            np.array([c.progress, c.heading, c.clearance, c.speed]),
            np.array([limits.vx, c.brake * limits.ax, c.brake * limits.awz]),
            best,
        )
        return best

    def _window(self, speed: DoubleArray) -> DoubleArray:
        """``(K, 3)`` velocities within reach of the period that the robot can drive at all."""
        c, limits, period = self._config, self._robot.limits, self._robot.control_period
        vx = _reachable(speed[0], limits.ax * period, 0.0, limits.vx, c.forward)
        wz = _reachable(speed[2], limits.awz * period, -limits.wz, limits.wz, c.turn)
        vy = np.zeros(1)
        if self._robot.kinematics == "omnidirectional":
            vy = _reachable(speed[1], limits.ay * period, -limits.vy, limits.vy, c.lateral)
        window = np.stack(np.meshgrid(vx, vy, wz, indexing="ij"), axis=-1).reshape(-1, 3)
        if self._robot.kinematics == "car":
            window = window[np.abs(window[:, 2]) * self._robot.turning_radius <= window[:, 0] + 1e-9]
        return np.ascontiguousarray(window)


def _reachable(now: float, change: float, low: float, high: float, count: int) -> DoubleArray:
    """Values within reach; with the present one and zero among them where they are."""
    now = min(max(now, low), high)
    values = np.linspace(max(low, now - change), min(high, now + change), count)
    if values[0] < 0.0 < values[-1]:
        values[np.argmin(np.abs(values))] = 0.0
    return values


@numba.njit(cache=True)
def _distance(px: float, py: float, polygon: DoubleArray, radius: float) -> float:
    """From the footprint at the origin to a point, metres; negative inside of it."""
    if len(polygon) == 0:
        return math.hypot(px, py) - radius
    outside, inside = math.inf, -math.inf
    for i in range(len(polygon)):
        ax, ay = polygon[i]
        bx, by = polygon[(i + 1) % len(polygon)]
        ex, ey = bx - ax, by - ay
        length = math.hypot(ex, ey)
        # Counter-clockwise corners: the outside is on the right of an edge.
        depth = ((px - ax) * ey - (py - ay) * ex) / length
        inside = max(inside, depth)
        along = min(max(((px - ax) * ex + (py - ay) * ey) / (length * length), 0.0), 1.0)
        outside = min(outside, math.hypot(px - ax - along * ex, py - ay - along * ey))
    return outside if inside > 0.0 else inside


@numba.njit(cache=True)
def _search(
    points: DoubleArray,
    polygon: DoubleArray,
    radius: float,
    goal: DoubleArray,
    window: DoubleArray,
    sizes: DoubleArray,
    weights: DoubleArray,
    limits: DoubleArray,
    best: DoubleArray,
) -> None:
    """Write the best velocity of the window into ``best``; to stop where none is safe.

    Args:
        points: ``(P, 2)`` obstacles in base_link.
        polygon, radius: the footprint; the radius is the circle around it.
        goal: x, y, yaw in base_link.
        window: ``(K, 3)`` velocities.
        sizes: horizon and step in seconds, distance that counts and margin in metres.
        weights: of progress, heading, clearance, speed.
        limits: fastest speed, braking of speed and of turning.
        best: (3,) receives it.
    """
    horizon, step, clear, margin = sizes
    from_here = math.hypot(goal[0], goal[1])
    top = -math.inf
    best[:] = 0.0
    for k in range(len(window)):
        vx, vy, wz = window[k]
        speed = math.hypot(vx, vy)
        # Long enough to stop at the end of the first step, and no further than the goal.
        braking = max(speed / limits[1], abs(wz) / limits[2])
        until = horizon if speed * horizon <= from_here or speed == 0.0 else from_here / speed
        until = max(until, step + braking)
        x, y, yaw, nearest, free = 0.0, 0.0, 0.0, clear, True
        steps = int(math.ceil(until / step))
        closest = from_here
        for i in range(steps):
            middle = yaw + 0.5 * wz * step
            x += (vx * math.cos(middle) - vy * math.sin(middle)) * step
            y += (vx * math.sin(middle) + vy * math.cos(middle)) * step
            yaw += wz * step
            c, s = math.cos(yaw), math.sin(yaw)
            for p in range(len(points)):
                dx, dy = points[p, 0] - x, points[p, 1] - y
                if dx * dx + dy * dy > (radius + nearest + margin) ** 2:
                    continue
                distance = _distance(c * dx + s * dy, -s * dx + c * dy, polygon, radius) - margin
                nearest = min(nearest, distance)
            if nearest <= 0.0:
                # It may go so far if it can stop before.
                free = (i + 1) * step > step + braking + 1e-9
                break
            left = math.hypot(goal[0] - x, goal[1] - y)
            closest = min(closest, left)
        if not free:
            continue
        bearing = math.atan2(goal[1] - y, goal[0] - x) - yaw
        bearing = abs((bearing + math.pi) % (2.0 * math.pi) - math.pi)
        if closest < 0.2:
            bearing = 0.0
        value = (
            weights[0] * (from_here - closest) / max(horizon * limits[0], 1e-9)
            - weights[1] * bearing / math.pi
            + weights[2] * max(nearest, 0.0) / clear * 0.25
            + weights[3] * speed / limits[0]
        )
        if value > top:
            top = value
            best[0], best[1], best[2] = vx, vy, wz
    if top == -math.inf:
        # Nothing in the window is safe: stop, and turn where there is room for it.
        best[0], best[1] = 0.0, 0.0
        side = math.atan2(goal[1], goal[0])
        best[2] = 0.5 if side >= 0.0 else -0.5
