"""Where a robot fits in a world: starts and goals that are free and connected, and shortest paths.

Built once a world and footprint (a few milliseconds); after that a start with its goal
costs microseconds, because every episode of training begins with one. Paths are for
measuring how far round a goal lies; the policy never sees them.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from scanpilot.robot import Footprint
from scanpilot.sim import grid_kernels, simulator
from scanpilot.sim.world import World
from scanpilot.types import BoolArray, DoubleArray, FloatArray, InvalidInput

_ANY_DIRECTION = np.ones((3, 3), dtype=np.int8)
# Distances beyond this are not told apart, metres.
_REACH = 1.5


class NoRoom(InvalidInput):
    """No start and goal as asked for were found."""


class FreeSpace:
    """The free space of one footprint in one world, on a grid of cells; verified exactly when sampled.

    Attributes:
        world: the world.
        resolution: metres a cell.
        origin: x, y of the lower left corner of cell (0, 0), metres.
        clearance: ``(rows, columns)`` float32 exact distance of each cell's centre to the nearest
            obstacle, metres, at most 1.5; 0 inside of one. Rows go up with y.
        free: ``(rows, columns)`` where the circle around the footprint fits with the margin.
        component: ``(rows, columns)`` number of the connected free region; 0 where not free.
        cells: ``(C,)`` indices, row by row, of the cells that are free.
    """

    def __init__(
        self,
        world: World,
        footprint: Footprint,
        *,
        resolution: float = 0.1,
        margin: float = 0.05,
        turning_radius: float = 0.0,
    ) -> None:
        """Rasterise the world.

        Args:
            world: any world.
            footprint: of the robots.
            resolution: metres a cell; passages narrower than about half of it may be missed or invented.
            margin: metres kept free around the footprint.
            turning_radius: of a car, metres; it starts where it can drive on, and has goals beyond the
                circle that it cannot turn within.
        """
        self.world = world
        self.resolution = resolution
        self._turning_radius = turning_radius
        self._geometry = simulator.allocate([world])
        self._body = simulator.make_body(footprint)
        self._needed = self._body.radius + margin
        x0, y0, x1, y1 = world.area
        self.origin = (x0, y0)
        columns = max(1, math.ceil((x1 - x0) / resolution))
        rows = max(1, math.ceil((y1 - y0) / resolution))
        reach = max(_REACH, self._needed)
        clearance = np.empty((rows, columns), dtype=np.float32)
        grid_kernels.clearance_grid(self._geometry, np.array(self.origin), resolution, reach, clearance)
        self.clearance: FloatArray = clearance
        self.free: BoolArray = clearance > self._needed
        component, count = ndimage.label(self.free, structure=_ANY_DIRECTION)
        self.component: NDArray[np.int32] = component.astype(np.int32)
        self.cells: NDArray[np.intp] = np.flatnonzero(self.component)
        sizes = np.bincount(self.component.reshape(-1)[self.cells], minlength=int(count) + 1)
        self._sizes: NDArray[np.int64] = sizes.astype(np.int64)

    @property
    def area(self) -> float:
        """Free area, m^2."""
        return float(len(self.cells)) * self.resolution**2

    @property
    def largest_share(self) -> float:
        """Share of the free area that the largest connected region has."""
        return float(self._sizes.max() / max(len(self.cells), 1))

    def sample(
        self,
        rng: np.random.Generator,
        *,
        min_distance: float = 2.0,
        max_distance: float = 12.0,
        taken: DoubleArray | None = None,
        taken_goals: DoubleArray | None = None,
        spacing: float = 0.2,
        tries: int = 2000,
    ) -> tuple[DoubleArray, DoubleArray]:
        """A start pose and a goal pose for one more robot.

        Args:
            rng: decides.
            min_distance, max_distance: straight distance from start to goal, metres.
            taken: ``(K, 2 or 3)`` poses of robots that the start keeps clear of.
            taken_goals: ``(K, 2 or 3)`` goals that the goal keeps clear of.
            spacing: metres left free between the circles around two robots.
            tries: before giving up.

        Returns:
            start and goal, each ``(3,)`` x, y, yaw; free for the footprint at that yaw, and connected.

        Raises:
            NoRoom: nothing found.
        """
        none = np.zeros((0, 2))
        out = np.empty((2, 3))
        # A goal beside a car, nearer than the two circles it can turn in, asks for a lap of honour first.
        min_distance = max(min_distance, 2.0 * self._turning_radius)
        found = grid_kernels.sample_pair(
            int(rng.integers(1 << 62)),
            self.cells,
            self.component,
            np.array(self.origin),
            self.resolution,
            self._geometry,
            self._body,
            none if taken is None else np.ascontiguousarray(taken[:, :2], dtype=np.float64),
            none if taken_goals is None else np.ascontiguousarray(taken_goals[:, :2], dtype=np.float64),
            2.0 * self._body.radius + spacing,
            min_distance,
            max_distance,
            self._turning_radius,
            tries,
            out,
        )
        if not found:
            raise NoRoom(
                f"world {self.world.name!r}: no free start with a connected goal {min_distance:g} to "
                f"{max_distance:g} m away in {tries} tries; {self.area:.1f} m^2 are free for a robot of "
                f"{self._body.radius:.2f} m around base_link, the largest region has "
                f"{100 * self.largest_share:.0f} % of it"
            )
        return out[0], out[1]

    def is_free(self, poses: DoubleArray, margin: float = 0.0) -> BoolArray:
        """``(K,)`` whether the footprint is in the free space at each of ``(K, 3)`` poses, exactly."""
        poses = np.atleast_2d(np.asarray(poses, dtype=np.float64))
        out = np.empty(len(poses))
        grid_kernels.pose_clearances(self._geometry, self._body, poses, margin + 1e-9, out)
        row, column = self._cell_of(poses[:, 0], poses[:, 1])
        inside = grid_kernels.inside_solid(self._geometry, poses[:, 0].copy(), poses[:, 1].copy())
        known = (row >= 0) & (row < self.free.shape[0]) & (column >= 0) & (column < self.free.shape[1])
        return cast(BoolArray, (out > margin) & ~inside & known)

    def shortest_path(self, start: DoubleArray, goal: DoubleArray) -> DoubleArray | None:
        """Corners ``(K, 2)`` of a shortest path for the circle around the footprint, or None.

        Found on the grid and pulled tight; so at most a few per cent longer than the true shortest.
        Start and goal may lie in cells that are not quite free; the nearest free cell stands in.
        """
        begin, end = self._nearest_free(start), self._nearest_free(goal)
        if begin < 0 or end < 0:
            return None
        cells = grid_kernels.grid_path(self.free, begin, end)
        if len(cells) == 0:
            return None
        columns = self.free.shape[1]
        x = self.origin[0] + (cells % columns + 0.5) * self.resolution
        y = self.origin[1] + (cells // columns + 0.5) * self.resolution
        points = np.stack((x, y), axis=1)
        points[0], points[-1] = start[:2], goal[:2]
        if len(points) == 1:
            points = np.stack((start[:2], goal[:2])).astype(np.float64)
        return grid_kernels.pull_tight(self.free, np.array(self.origin), self.resolution, points)

    def shortest_path_length(self, start: DoubleArray, goal: DoubleArray) -> float:
        """Length of `shortest_path`, metres; infinite when there is none."""
        path = self.shortest_path(start, goal)
        if path is None:
            return math.inf
        return float(np.sum(np.hypot(*np.diff(path, axis=0).T)))

    def detour(self, start: DoubleArray, goal: DoubleArray) -> float:
        """Length of the shortest path over the straight distance; 1 when the way is free."""
        straight = math.hypot(goal[0] - start[0], goal[1] - start[1])
        return self.shortest_path_length(start, goal) / max(straight, 1e-9)

    def _cell_of(self, x: DoubleArray, y: DoubleArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row = np.floor((y - self.origin[1]) / self.resolution).astype(np.int64)
        column = np.floor((x - self.origin[0]) / self.resolution).astype(np.int64)
        return row, column

    def _nearest_free(self, point: DoubleArray) -> int:
        """Index of the free cell nearest to a point, searched within half a metre; -1 for none."""
        column = math.floor((point[0] - self.origin[0]) / self.resolution)
        row = math.floor((point[1] - self.origin[1]) / self.resolution)
        return int(grid_kernels.nearest_free(self.free, row, column, math.ceil(0.5 / self.resolution)))
