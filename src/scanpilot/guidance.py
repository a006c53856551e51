"""Which way round: a shortest path through what the newest scan shows, as three more numbers of the state.

A policy without memory that sees a scan and a goal must find out by itself, from ranges, on which side an
obstacle is better passed; where the way round is long it does not (see docs/training-log.md). Here the scan
is drawn into a small grid around the robot, the travel times to the goal are solved on it, and the policy
is told in which direction the fastest way begins and how much longer than the straight line it is. What
the scan does not show counts as free, so the numbers are a hint, not a plan: the policy sees the scan too,
learns how far to trust them, and the guard never asks them.

A function of scan and goal alone: it has no memory, and simulation, bags and robots compute the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from scanpilot.compiling import compiled
from scanpilot.types import DoubleArray, FloatArray

# Direction of the way (cosine and sine) and its excess over the straight line, metres.
FEATURES = 3
# Crossing what is too narrow costs this many times the way: dear, but never without a direction.
_BLOCKED = 30.0
# Passing at the edge of what is too narrow costs this much more than the way.
_CLOSE = 1.5
_MAX_EXCESS = 10.0
_ROUNDS = 6
_UNKNOWN = 1e9


@dataclass(frozen=True)
class GuidanceSpec:
    """The grid around the robot.

    Attributes:
        clearance: metres from the robot's centre to an obstacle below which there is no way through.
        comfort: metres from which on an obstacle makes no way dearer.
        cell: metres.
        half_width: of the square grid, metres; beyond it the way is taken to be straight.
        look_ahead: metres of the way whose end gives the direction.
    """

    clearance: float = 0.27
    comfort: float = 0.4
    cell: float = 0.2
    half_width: float = 5.0
    look_ahead: float = 1.5

    def __post_init__(self) -> None:
        if not 0.0 < self.clearance < self.comfort < self.half_width < math.inf:
            raise ValueError(
                f"guidance has clearance {self.clearance} m, comfort {self.comfort} m and half_width "
                f"{self.half_width} m, expected 0 < clearance < comfort < half_width"
            )
        if not (0.0 < self.cell < self.half_width / 2.0 and 0.0 < self.look_ahead < self.half_width):
            raise ValueError(
                f"guidance has cell {self.cell} m and look_ahead {self.look_ahead} m, expected more than 0 "
                f"and well within half_width {self.half_width} m"
            )


class Guide:
    """Computes `FEATURES` numbers of a state from its newest scan and its goal.

    Args:
        spec: the grid.
        angles: ``(n,)`` directions of the scan's beams in ``base_link``, radians.
        range_max: metres; beams that reach it hit nothing.
    """

    def __init__(self, spec: GuidanceSpec, angles: DoubleArray, range_max: float) -> None:
        self._spec = spec
        self._cos, self._sin = np.cos(angles), np.sin(angles)
        self._range_max = range_max * (1.0 - 1e-3)

    def __call__(self, scans: FloatArray, goals: FloatArray) -> FloatArray:
        """Guide N robots.

        Args:
            scans: ``(N, n)`` newest scans, metres.
            goals: ``(N, 3)`` x, y, yaw in ``base_link``.

        Returns:
            ``(N, 3)`` float32: cosine and sine of the direction in which the way begins, in ``base_link``,
            and how much longer it is than the straight line, metres, at most 10; costs of passing close
            included.
        """
        spec = self._spec
        out = np.empty((len(scans), FEATURES))
        _guide(
            np.ascontiguousarray(scans, dtype=np.float64),
            self._cos,
            self._sin,
            self._range_max,
            np.ascontiguousarray(goals, dtype=np.float64),
            spec.cell,
            spec.half_width,
            spec.clearance,
            spec.comfort,
            spec.look_ahead,
            out,
        )
        return cast(FloatArray, out.astype(np.float32))


@compiled
def _guide(
    scans: DoubleArray,
    cos: DoubleArray,
    sin: DoubleArray,
    range_max: float,
    goals: DoubleArray,
    cell: float,
    half: float,
    clearance: float,
    comfort: float,
    look_ahead: float,
    out: DoubleArray,
) -> None:
    n = int(round(2.0 * half / cell))
    cost, times = np.empty((n, n)), np.empty((n, n))
    for k in range(scans.shape[0]):
        gx, gy = goals[k, 0], goals[k, 1]
        _draw(scans[k], cos, sin, range_max, cell, half, clearance, comfort, cost)
        _seed(gx, gy, cell, half, times)
        _solve(cost, cell, times)
        x, y = _descend(times, gx, gy, cell, half, look_ahead)
        length = max(math.hypot(x, y), 1e-6)
        c = n // 2
        way = 0.25 * (times[c, c] + times[c - 1, c] + times[c, c - 1] + times[c - 1, c - 1])
        out[k, 0], out[k, 1] = x / length, y / length
        out[k, 2] = min(max(way - math.hypot(gx, gy), 0.0), _MAX_EXCESS)


@compiled
def _draw(
    scan: DoubleArray,
    cos: DoubleArray,
    sin: DoubleArray,
    range_max: float,
    cell: float,
    half: float,
    clearance: float,
    comfort: float,
    cost: DoubleArray,
) -> None:
    """Cost of crossing each cell, metres, from its distance to the nearest hit."""
    n = cost.shape[0]
    reach = int(math.ceil(comfort / cell)) + 1
    # Squared distances first; costs in a second pass.
    cost[:] = comfort * comfort
    for b in range(scan.shape[0]):
        r = scan[b]
        if not r < range_max or r > 1.5 * half:
            continue
        x, y = r * cos[b] + half, r * sin[b] + half
        column, row = int(math.floor(x / cell)), int(math.floor(y / cell))
        for i in range(max(row - reach, 0), min(row + reach + 1, n)):
            dy = (i + 0.5) * cell - y
            for j in range(max(column - reach, 0), min(column + reach + 1, n)):
                dx = (j + 0.5) * cell - x
                cost[i, j] = min(cost[i, j], dx * dx + dy * dy)
    for i in range(n):
        for j in range(n):
            d = math.sqrt(cost[i, j])
            closeness = (comfort - d) / (comfort - clearance)
            cost[i, j] = cell * (_BLOCKED if d < clearance else 1.0 + _CLOSE * closeness)


@compiled
def _seed(gx: float, gy: float, cell: float, half: float, times: DoubleArray) -> None:
    """The goal's cells and, since what lies outside is taken to be free, the grid's edge."""
    n = times.shape[0]
    times[:] = _UNKNOWN
    for i in range(n):
        y = (i + 0.5) * cell - half - gy
        for j in range(0, n, 1 if i == 0 or i == n - 1 else n - 1):
            times[i, j] = math.hypot((j + 0.5) * cell - half - gx, y)
    column, row = int(math.floor((gx + half) / cell)), int(math.floor((gy + half) / cell))
    for i in range(max(row - 1, 0), min(row + 2, n)):
        for j in range(max(column - 1, 0), min(column + 2, n)):
            times[i, j] = math.hypot((j + 0.5) * cell - half - gx, (i + 0.5) * cell - half - gy)


@compiled
def _solve(cost: DoubleArray, cell: float, times: DoubleArray) -> None:
    """Fast sweeping of the eikonal equation (Zhao 2005, Math. Comp. 74), in place."""
    n = cost.shape[0]
    for _ in range(_ROUNDS):
        change = 0.0
        for direction in range(4):
            for a in range(n):
                i = a if direction < 2 else n - 1 - a
                for b in range(n):
                    j = b if direction % 2 == 0 else n - 1 - b
                    across = min(
                        times[i, j - 1] if j > 0 else _UNKNOWN, times[i, j + 1] if j + 1 < n else _UNKNOWN
                    )
                    along = min(
                        times[i - 1, j] if i > 0 else _UNKNOWN, times[i + 1, j] if i + 1 < n else _UNKNOWN
                    )
                    h, here = cost[i, j], times[i, j]
                    low = min(across, along)
                    if low >= here:
                        continue
                    found = low + h
                    apart = abs(across - along)
                    if apart < h:
                        found = 0.5 * (across + along + math.sqrt(2.0 * h * h - apart * apart))
                    if found < here:
                        change = max(change, here - found)
                        times[i, j] = found
        if change < 0.5 * cell:
            break


@compiled
def _descend(
    times: DoubleArray, gx: float, gy: float, cell: float, half: float, look_ahead: float
) -> tuple[float, float]:
    """Where the way from the robot has come to after ``look_ahead`` metres, or at the goal."""
    n = times.shape[0]
    x, y, step = 0.0, 0.0, 0.5 * cell
    for _ in range(int(3.0 * look_ahead / step)):
        if math.hypot(x, y) >= look_ahead or math.hypot(x - gx, y - gy) < cell:
            break
        u, v = (x + half) / cell - 0.5, (y + half) / cell - 0.5
        j, i = int(math.floor(u)), int(math.floor(v))
        if i < 0 or j < 0 or i + 1 >= n or j + 1 >= n:
            break
        u, v = u - j, v - i
        dx = (1.0 - v) * (times[i, j + 1] - times[i, j]) + v * (times[i + 1, j + 1] - times[i + 1, j])
        dy = (1.0 - u) * (times[i + 1, j] - times[i, j]) + u * (times[i + 1, j + 1] - times[i, j + 1])
        slope = math.hypot(dx, dy)
        if slope < 1e-9:
            break
        x -= step * dx / slope
        y -= step * dy / slope
    return x, y
