"""Which way round: a shortest path through what the robot has seen, as three more numbers of its state.

A policy that sees one scan and a goal circles in front of an obstacle whose ends it cannot see at once: from
either side the other looks shorter (docs/training-log.md shows such circles). So the robot remembers where
obstacles were, in a small map around itself that moves along; travel times to the goal are solved on it, and
the policy is told in which direction the fastest way begins and how much longer than the straight line it is.
What was never seen counts as free, so the numbers are a hint and no plan: the policy sees the scan too,
learns how far to trust them, and the guard never asks them.

Simulation, bags and robots compute the same. Needs poses that are smooth over seconds (odometry); what drifts
is forgotten as it is seen anew or left behind.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from scanpilot.compiling import compiled
from scanpilot.types import DoubleArray, FloatArray

# Direction of the way (cosine and sine) and its excess over the straight line, metres.
FEATURES = 3
# Crossing what is too narrow costs this many times the way: dear, but never without a direction.
_BLOCKED = 30.0
# Passing at the edge of what is too narrow costs this much more than the way.
_CLOSE = 4.0
_MAX_EXCESS = 10.0
_ROUNDS = 6
# Hits are remembered in cells this many times finer than those that ways are searched on: a cell holds only
# one, and gaps look wider by what it leaves out.
_FINER = 2
# Parts to either side of a cell; it is wide enough where one of them is. Were they many or cells as large as
# the robot, two cells would join across a gap that neither of their parts lies in.
_PARTS = 3
_ROUNDING = 1.0 - 1e-9
# Robots that a thread guides at a time.
_PIECE = 16
# A beam that goes this much farther than a remembered hit has looked through it, metres.
_SLACK = 0.3
_UNKNOWN = 1e9


@dataclass(frozen=True)
class GuidanceSpec:
    """The map around the robot.

    Attributes:
        clearance: metres from the robot's centre to an obstacle below which there is no way through.
        comfort: metres from which on an obstacle makes no way dearer.
        cell: metres; two thirds of ``clearance`` tell passages well apart.
        half_width: of the square map, metres; beyond it the way is taken to be straight.
        look_ahead: metres of the way whose end gives the direction.
    """

    clearance: float = 0.23
    comfort: float = 0.4
    cell: float = 0.15
    half_width: float = 4.95
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
    """Remembers obstacles around N robots and guides them.

    Args:
        spec: the map.
        angle_min: where the scan's first sector begins, in ``base_link``, radians.
        sector: width of a sector, radians; a sector's range is that of its middle.
        beams: n, number of sectors.
        range_max: metres; beams that reach it hit nothing.
        num_robots: N.
        threads: that share the work; the results do not depend on it.
    """

    def __init__(
        self,
        spec: GuidanceSpec,
        angle_min: float,
        sector: float,
        beams: int,
        range_max: float,
        num_robots: int = 1,
        threads: int = 1,
    ) -> None:
        self._spec = spec
        self._angle_min, self._sector = angle_min, sector
        self._range_max = range_max * (1.0 - 1e-3)
        angles = angle_min + sector * (np.arange(beams) + 0.5)
        self._cos, self._sin = np.cos(angles), np.sin(angles)
        cells = round(2.0 * spec.half_width / spec.cell) * _FINER
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        # Where in a cell the latest hit was; cells are used over and over as robots move on.
        self._seen: DoubleArray = np.full((num_robots, cells, cells, 2), math.nan)

    def __call__(
        self,
        scans: FloatArray,
        goals: FloatArray,
        poses: DoubleArray,
        robots: NDArray[np.int64] | None = None,
    ) -> FloatArray:
        """Take in what M robots see now, and guide them.

        Args:
            scans: ``(M, n)`` newest scans, metres.
            goals: ``(M, 3)`` x, y, yaw in ``base_link``.
            poses: ``(M, 3)`` x, y, yaw in odometry's frame.
            robots: ``(M,)`` which; all of them by default.

        Returns:
            ``(M, 3)`` float32: cosine and sine of the direction in which the way begins, in ``base_link``,
            and how much longer it is than the straight line, metres, at most 10; what passing close costs
            included.
        """
        spec = self._spec
        which = np.arange(len(scans)) if robots is None else robots
        out = np.empty((len(scans), FEATURES))
        ranges, targets, places = (
            np.ascontiguousarray(values, dtype=np.float64) for values in (scans, goals, poses)
        )

        def work(part: slice) -> None:
            _guide(
                self._seen,
                which[part],
                ranges[part],
                self._cos,
                self._sin,
                self._angle_min,
                self._sector,
                self._range_max,
                targets[part],
                places[part],
                spec.cell,
                spec.clearance,
                spec.comfort,
                spec.look_ahead,
                out[part],
            )

        # Small pieces: some robots take longer than others.
        parts = [slice(begin, begin + _PIECE) for begin in range(0, len(scans), _PIECE)]
        list(map(work, parts) if self._pool is None else self._pool.map(work, parts))
        return cast(FloatArray, out.astype(np.float32))

    def forget(self, robots: NDArray[np.generic] | slice = slice(None)) -> None:
        """Robots (indices or mask) that are somewhere else now, or whose odometry jumped."""
        self._seen[robots] = math.nan

    @property
    def memory(self) -> DoubleArray:
        """``(N, cells, cells, 2)`` what is remembered, to be saved."""
        return self._seen

    def restore(self, memory: DoubleArray) -> None:
        """Go on from a `memory` that was saved."""
        self._seen[:] = memory


@compiled
def _guide(
    seen: DoubleArray,
    robots: NDArray[np.int64],
    scans: DoubleArray,
    cos: DoubleArray,
    sin: DoubleArray,
    angle_min: float,
    sector: float,
    range_max: float,
    goals: DoubleArray,
    poses: DoubleArray,
    cell: float,
    clearance: float,
    comfort: float,
    look_ahead: float,
    out: DoubleArray,
) -> None:
    n = seen.shape[1] // _FINER
    cost, times = np.empty((n, n)), np.empty((n, n))
    fine = cell / _FINER
    for k in range(scans.shape[0]):
        memory, pose = seen[robots[k]], poses[k]
        # The map's lower left cell, counted from the frame's origin.
        column0 = int(math.floor(pose[0] / cell)) - n // 2
        row0 = int(math.floor(pose[1] / cell)) - n // 2
        _forget(memory, _FINER * row0, _FINER * column0, scans[k], angle_min, sector, pose, fine)
        _remember(memory, _FINER * row0, _FINER * column0, scans[k], cos, sin, range_max, pose, fine)
        # From here on in the map's own frame: its axes are odometry's, its origin its lower left corner.
        left, low = column0 * cell, row0 * cell
        _draw(memory, left, low, cell, clearance, comfort, cost)
        x, y = pose[0] - left, pose[1] - low
        c, s = math.cos(pose[2]), math.sin(pose[2])
        gx, gy = x + c * goals[k, 0] - s * goals[k, 1], y + s * goals[k, 0] + c * goals[k, 1]
        _seed(gx, gy, cell, times)
        _solve(cost, cell, times)
        dx, dy = _descend(times, x, y, gx, gy, cell, look_ahead)
        way = _value(times, x, y, cell)
        length = max(math.hypot(dx, dy), 1e-6)
        out[k, 0], out[k, 1] = (c * dx + s * dy) / length, (c * dy - s * dx) / length
        out[k, 2] = min(max(way - math.hypot(gx - x, gy - y), 0.0), _MAX_EXCESS)


@compiled
def _forget(
    memory: DoubleArray,
    row0: int,
    column0: int,
    scan: DoubleArray,
    angle_min: float,
    sector: float,
    pose: DoubleArray,
    cell: float,
) -> None:
    """Forget what lies outside of the map now, and what the scan looks through."""
    n, beams = memory.shape[0], scan.shape[0]
    c, s = math.cos(pose[2]), math.sin(pose[2])
    for i in range(n):
        for j in range(n):
            x, y = memory[i, j, 0], memory[i, j, 1]
            if math.isnan(x):
                continue
            column, row = int(math.floor(x / cell)) - column0, int(math.floor(y / cell)) - row0
            if column < 0 or column >= n or row < 0 or row >= n:
                memory[i, j, 0] = math.nan
                continue
            x, y = x - pose[0], y - pose[1]
            bearing = math.atan2(c * y - s * x, c * x + s * y)
            b = int(math.floor(((bearing - angle_min) % (2.0 * math.pi)) / sector))
            if b >= beams:
                continue
            d = math.hypot(x, y)
            # Not by a beam that passes its edge: the ones to either side must go on too.
            before, after = scan[b - 1 if b > 0 else beams - 1], scan[b + 1 if b + 1 < beams else 0]
            if scan[b] > d + _SLACK and before > d and after > d:
                memory[i, j, 0] = math.nan


@compiled
def _remember(
    memory: DoubleArray,
    row0: int,
    column0: int,
    scan: DoubleArray,
    cos: DoubleArray,
    sin: DoubleArray,
    range_max: float,
    pose: DoubleArray,
    cell: float,
) -> None:
    n = memory.shape[0]
    c, s = math.cos(pose[2]), math.sin(pose[2])
    for b in range(scan.shape[0]):
        r = scan[b]
        if not r < range_max:
            continue
        x = pose[0] + r * (c * cos[b] - s * sin[b])
        y = pose[1] + r * (s * cos[b] + c * sin[b])
        column, row = int(math.floor(x / cell)), int(math.floor(y / cell))
        if 0 <= column - column0 < n and 0 <= row - row0 < n:
            memory[row % n, column % n, 0] = x
            memory[row % n, column % n, 1] = y


@compiled
def _draw(
    memory: DoubleArray,
    left: float,
    low: float,
    cell: float,
    clearance: float,
    comfort: float,
    cost: DoubleArray,
) -> None:
    """Cost of crossing each cell, metres, from the distance to the nearest hit."""
    n, part = cost.shape[0], cell / _PARTS
    # Squared distances first, of cells' middles up to comfort and of their parts' up to clearance: a gap
    # hardly wider than the robot may have its middle between those of two cells.
    cost[:] = comfort * comfort
    narrow = np.full((n * _PARTS, n * _PARTS), clearance * clearance)
    for a in range(memory.shape[0]):
        for b in range(memory.shape[1]):
            if not math.isnan(memory[a, b, 0]):
                x, y = memory[a, b, 0] - left, memory[a, b, 1] - low
                _stamp(x, y, cell, comfort, cost)
                _stamp(x, y, part, clearance, narrow)
    for i in range(n):
        for j in range(n):
            d = cost[i, j]
            if d < clearance * clearance:
                for k in range(i * _PARTS, (i + 1) * _PARTS):
                    for m in range(j * _PARTS, (j + 1) * _PARTS):
                        d = max(d, narrow[k, m])
            d = math.sqrt(d)
            closeness = (comfort - d) / (comfort - clearance)
            cost[i, j] = cell * (_BLOCKED if d < clearance * _ROUNDING else 1.0 + _CLOSE * closeness)


@compiled
def _stamp(x: float, y: float, size: float, reach: float, squares: DoubleArray) -> None:
    """Lower the squared distances of the middles of cells around a hit."""
    n, cells = squares.shape[0], int(math.ceil(reach / size))
    column, row = int(math.floor(x / size)), int(math.floor(y / size))
    for i in range(max(row - cells, 0), min(row + cells + 1, n)):
        dy = (i + 0.5) * size - y
        for j in range(max(column - cells, 0), min(column + cells + 1, n)):
            dx = (j + 0.5) * size - x
            squares[i, j] = min(squares[i, j], dx * dx + dy * dy)


@compiled
def _seed(gx: float, gy: float, cell: float, times: DoubleArray) -> None:
    """The goal's cells and, since what lies outside is taken to be free, the map's edge."""
    n = times.shape[0]
    times[:] = _UNKNOWN
    for i in range(n):
        y = (i + 0.5) * cell - gy
        for j in range(0, n, 1 if i == 0 or i == n - 1 else n - 1):
            times[i, j] = math.hypot((j + 0.5) * cell - gx, y)
    column, row = int(math.floor(gx / cell)), int(math.floor(gy / cell))
    for i in range(max(row - 1, 0), min(row + 2, n)):
        for j in range(max(column - 1, 0), min(column + 2, n)):
            times[i, j] = math.hypot((j + 0.5) * cell - gx, (i + 0.5) * cell - gy)


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
    times: DoubleArray, x: float, y: float, gx: float, gy: float, cell: float, look_ahead: float
) -> tuple[float, float]:
    """How far the way from (x, y) has come after ``look_ahead`` metres, or at the goal."""
    n = times.shape[0]
    x0, y0, step = x, y, 0.5 * cell
    for _ in range(int(3.0 * look_ahead / step)):
        if math.hypot(x - x0, y - y0) >= look_ahead or math.hypot(x - gx, y - gy) < cell:
            break
        j, i = int(math.floor(x / cell - 0.5)), int(math.floor(y / cell - 0.5))
        if i < 0 or j < 0 or i + 1 >= n or j + 1 >= n:
            break
        u, v = x / cell - 0.5 - j, y / cell - 0.5 - i
        dx = (1.0 - v) * (times[i, j + 1] - times[i, j]) + v * (times[i + 1, j + 1] - times[i + 1, j])
        dy = (1.0 - u) * (times[i + 1, j] - times[i, j]) + u * (times[i + 1, j + 1] - times[i, j + 1])
        slope = math.hypot(dx, dy)
        if slope < 1e-9:
            break
        x -= step * dx / slope
        y -= step * dy / slope
    return x - x0, y - y0


@compiled
def _value(times: DoubleArray, x: float, y: float, cell: float) -> float:
    """Travel time at a point well inside the map, by bilinear interpolation."""
    j, i = int(math.floor(x / cell - 0.5)), int(math.floor(y / cell - 0.5))
    u, v = x / cell - 0.5 - j, y / cell - 0.5 - i
    lower = (1.0 - u) * times[i, j] + u * times[i, j + 1]
    upper = (1.0 - u) * times[i + 1, j] + u * times[i + 1, j + 1]
    found: float = (1.0 - v) * lower + v * upper
    return found
