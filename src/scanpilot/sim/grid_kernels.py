"""Compiled inner loops of `free_space`: clearance grid, sampling, grid paths.

Apart from `kernels` because training and benchmarks of the simulator need none of it.
Calls into `kernels` are few; numba's cache does not notice when those change, so
`kernels` holds everything that a change of geometry would touch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scanpilot.compiling import compiled
from scanpilot.sim.kernels import (
    OBSTACLE,
    Body,
    Geometry,
    hash_counters,
    static_clearance,
    to_unit,
)
from scanpilot.types import BoolArray, DoubleArray, FloatArray

IntArray = NDArray[np.int64]


@compiled
def clearance_grid(
    geometry: Geometry, origin: DoubleArray, resolution: float, reach: float, out: FloatArray
) -> None:
    """Distance of every cell centre to the obstacles of world 0, at most ``reach``; 0 inside of one."""
    rows, columns = out.shape
    out[:] = reach
    _mark_inside(geometry, origin, resolution, out)
    segments, flags = geometry.segments[0], geometry.segment_flags[0]
    count = geometry.segment_start[0, geometry.tiles[0, 0] * geometry.tiles[0, 1]]
    for k in range(count):
        if flags[k] & OBSTACLE:
            _lower_near_segment(out, origin, resolution, reach, segments[k])
    circles, circle_flags = geometry.circles[0], geometry.circle_flags[0]
    count = geometry.circle_start[0, geometry.tiles[0, 0] * geometry.tiles[0, 1]]
    for k in range(count):
        if circle_flags[k] & OBSTACLE:
            x, y, radius = circles[k, 0], circles[k, 1], circles[k, 2]
            r0, r1 = _span(y - radius, y + radius, origin[1], resolution, reach, rows)
            c0, c1 = _span(x - radius, x + radius, origin[0], resolution, reach, columns)
            for r in range(r0, r1):
                for c in range(c0, c1):
                    px, py = origin[0] + (c + 0.5) * resolution, origin[1] + (r + 0.5) * resolution
                    d = max(math.hypot(px - x, py - y) - radius, 0.0)
                    out[r, c] = min(out[r, c], d)


@compiled
def _span(
    low: float, high: float, origin: float, resolution: float, reach: float, count: int
) -> tuple[int, int]:
    first = max(math.floor((low - reach - origin) / resolution), 0)
    last = min(math.floor((high + reach - origin) / resolution) + 1, count)
    return first, last


@compiled
def _lower_near_segment(
    out: FloatArray, origin: DoubleArray, resolution: float, reach: float, segment: DoubleArray
) -> None:
    ax, ay, bx, by = segment[0], segment[1], segment[2], segment[3]
    r0, r1 = _span(min(ay, by), max(ay, by), origin[1], resolution, reach, out.shape[0])
    c0, c1 = _span(min(ax, bx), max(ax, bx), origin[0], resolution, reach, out.shape[1])
    ex, ey = bx - ax, by - ay
    inverse = 1.0 / (ex * ex + ey * ey)
    for r in range(r0, r1):
        fy = origin[1] + (r + 0.5) * resolution - ay
        for c in range(c0, c1):
            fx = origin[0] + (c + 0.5) * resolution - ax
            t = min(max((fx * ex + fy * ey) * inverse, 0.0), 1.0)
            gx, gy = fx - t * ex, fy - t * ey
            d2 = gx * gx + gy * gy
            if d2 < out[r, c] * out[r, c]:
                out[r, c] = math.sqrt(d2)


@compiled
def _mark_inside(geometry: Geometry, origin: DoubleArray, resolution: float, out: FloatArray) -> None:
    """Set to 0 the cells whose centre is inside of a solid: where the outlines wind around it."""
    rows, columns = out.shape
    winding = np.zeros((rows, columns + 1), np.int16)
    segments, flags = geometry.segments[0], geometry.segment_flags[0]
    count = geometry.segment_start[0, geometry.tiles[0, 0] * geometry.tiles[0, 1]]
    for k in range(count):
        if not flags[k] & OBSTACLE:
            continue
        ax, ay, bx, by = segments[k, 0], segments[k, 1], segments[k, 2], segments[k, 3]
        # Downward edges have the solid, on their left, to the right of them; upward ones end it.
        turn = 1 if by < ay else -1
        r0 = max(math.ceil((min(ay, by) - origin[1]) / resolution - 0.5), 0)
        for r in range(r0, rows):
            y = origin[1] + (r + 0.5) * resolution
            # Half-open, so that a shared end counts once.
            if y >= max(ay, by):
                break
            if y < min(ay, by):
                continue
            x = ax + (y - ay) * (bx - ax) / (by - ay)
            c = min(max(math.ceil((x - origin[0]) / resolution - 0.5), 0), columns)
            winding[r, c] += turn
    for r in range(rows):
        around = 0
        for c in range(columns):
            around += winding[r, c]
            if around > 0:
                out[r, c] = 0.0


@compiled
def inside_solid(geometry: Geometry, x: DoubleArray, y: DoubleArray) -> BoolArray:
    """Whether the outlines of world 0's obstacles wind around each point, or a disc holds it."""
    inside = np.zeros(x.shape[0], np.bool_)
    tiles = geometry.tiles[0, 0] * geometry.tiles[0, 1]
    for p in range(x.shape[0]):
        around = 0
        for k in range(geometry.segment_start[0, tiles]):
            if not geometry.segment_flags[0, k] & OBSTACLE:
                continue
            s = geometry.segments[0, k]
            if (s[1] <= y[p]) != (s[3] <= y[p]) and x[p] >= s[0] + (y[p] - s[1]) * (s[2] - s[0]) / (
                s[3] - s[1]
            ):
                around += 1 if s[3] < s[1] else -1
        inside[p] = around > 0
        for k in range(geometry.circle_start[0, tiles]):
            c = geometry.circles[0, k]
            if geometry.circle_flags[0, k] & OBSTACLE and math.hypot(x[p] - c[0], y[p] - c[1]) <= c[2]:
                inside[p] = True
    return inside


@compiled
def pose_clearances(
    geometry: Geometry, body: Body, poses: DoubleArray, limit: float, out: DoubleArray
) -> None:
    """Distance of the footprint at each of ``(K, 3)`` poses to what stands still in world 0."""
    for k in range(poses.shape[0]):
        cos, sin = math.cos(poses[k, 2]), math.sin(poses[k, 2])
        out[k] = static_clearance(geometry, 0, body, poses[k, 0], poses[k, 1], cos, sin, limit)


@compiled
def sample_pair(
    seed: int,
    cells: IntArray,
    component: NDArray[np.int32],
    origin: DoubleArray,
    resolution: float,
    geometry: Geometry,
    body: Body,
    taken: DoubleArray,
    taken_goals: DoubleArray,
    apart: float,
    min_distance: float,
    max_distance: float,
    turning_radius: float,
    tries: int,
    out: DoubleArray,
) -> bool:
    """A start and a goal into ``(2, 3)`` ``out``; False when none was found."""
    if cells.shape[0] == 0:
        return False
    for t in range(tries):
        start = _draw(seed, 2 * t, cells, component, origin, resolution, out[0])
        if not _apart(out[0], taken, apart) or not _fits(geometry, body, out[0]):
            continue
        if turning_radius > 0.0 and not has_way_ahead(geometry, body, out[0], turning_radius):
            continue
        # A start is dear when many robots stand around: a few goals each.
        for u in range(8):
            goal = _draw(seed, 2 * (tries + 8 * t + u) + 1, cells, component, origin, resolution, out[1])
            distance = math.hypot(out[1, 0] - out[0, 0], out[1, 1] - out[0, 1])
            if goal != start or not min_distance <= distance <= max_distance:
                continue
            if _apart(out[1], taken_goals, apart) and _fits(geometry, body, out[1]):
                return True
    return False


@compiled
def _draw(
    seed: int,
    counter: int,
    cells: IntArray,
    component: NDArray[np.int32],
    origin: DoubleArray,
    resolution: float,
    pose: DoubleArray,
) -> int:
    """A pose somewhere in a random free cell; returns the cell's component."""
    columns = component.shape[1]
    k = min(int(to_unit(hash_counters(seed, counter, 0, 0)) * cells.shape[0]), cells.shape[0] - 1)
    row, column = cells[k] // columns, cells[k] % columns
    pose[0] = origin[0] + (column + to_unit(hash_counters(seed, counter, 1, 0))) * resolution
    pose[1] = origin[1] + (row + to_unit(hash_counters(seed, counter, 2, 0))) * resolution
    pose[2] = (2.0 * to_unit(hash_counters(seed, counter, 3, 0)) - 1.0) * math.pi
    number: int = component[row, column]
    return number


@compiled
def _apart(pose: DoubleArray, taken: DoubleArray, apart: float) -> bool:
    for k in range(taken.shape[0]):
        if (taken[k, 0] - pose[0]) ** 2 + (taken[k, 1] - pose[1]) ** 2 < apart * apart:
            return False
    return True


@compiled
def _fits(geometry: Geometry, body: Body, pose: DoubleArray) -> bool:
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    return static_clearance(geometry, 0, body, pose[0], pose[1], cos, sin, 0.03) >= 0.03


@compiled
def has_way_ahead(geometry: Geometry, body: Body, pose: DoubleArray, turning_radius: float) -> bool:
    """Whether a car can drive on from a pose for half a turning circle, in bends and straights, untouched.

    A car that does not drive backwards is lost where it cannot: depth first through pieces of a fifth of
    that length, straight or with the wheels turned fully to either side.
    """
    length = 0.2 * math.pi * turning_radius
    # Three more poses for each of five pieces are the most that wait at any time.
    waiting = np.empty((16, 4))
    waiting[0, 0], waiting[0, 1], waiting[0, 2], waiting[0, 3] = pose[0], pose[1], pose[2], 0.0
    count = 1
    while count > 0:
        count -= 1
        x, y, yaw, depth = waiting[count]
        if depth == 5.0:
            return True
        for steer in (-1.0, 1.0, 0.0):
            end = _piece(geometry, body, x, y, yaw, steer / turning_radius, length)
            if end[3] > 0.0:
                waiting[count, 0], waiting[count, 1], waiting[count, 2] = end[0], end[1], end[2]
                waiting[count, 3] = depth + 1.0
                count += 1
    return False


@compiled
def _piece(
    geometry: Geometry, body: Body, x: float, y: float, yaw: float, curvature: float, length: float
) -> tuple[float, float, float, float]:
    """Where an arc ends, and 1 if the footprint is free at a few poses along it, 0 otherwise."""
    steps = max(1, math.ceil(length / 0.1))
    advance = length / steps
    for _ in range(steps):
        # The chord of an arc points along its middle heading; a tenth of a metre is short beside the radius.
        middle = yaw + 0.5 * curvature * advance
        x += advance * math.cos(middle)
        y += advance * math.sin(middle)
        yaw += curvature * advance
        if static_clearance(geometry, 0, body, x, y, math.cos(yaw), math.sin(yaw), 0.03) < 0.03:
            return x, y, yaw, 0.0
    return x, y, yaw, 1.0


@compiled
def nearest_free(free: BoolArray, row: int, column: int, reach: int) -> int:
    """Index of the free cell nearest to (row, column), at most ``reach`` cells away; -1 for none."""
    rows, columns = free.shape
    best, best_distance = -1, (reach + 1) ** 2
    for r in range(max(row - reach, 0), min(row + reach, rows - 1) + 1):
        for c in range(max(column - reach, 0), min(column + reach, columns - 1) + 1):
            distance = (r - row) ** 2 + (c - column) ** 2
            if free[r, c] and distance < best_distance:
                best, best_distance = r * columns + c, distance
    return best


@compiled
def grid_path(free: BoolArray, start: int, goal: int) -> IntArray:
    """Cells of a shortest 8-connected path (A*), empty when there is none."""
    rows, columns = free.shape
    cost = np.full(rows * columns, np.inf)
    parent = np.full(rows * columns, -1, np.int64)
    heap_cost = np.empty(8 * rows * columns + 8, np.float64)
    heap_cell = np.empty(8 * rows * columns + 8, np.int64)
    size = _push(heap_cost, heap_cell, 0, 0.0, start)
    cost[start] = 0.0
    closed = np.zeros(rows * columns, np.bool_)
    goal_row, goal_column = goal // columns, goal % columns
    while size > 0:
        cell = heap_cell[0]
        size = _pop(heap_cost, heap_cell, size)
        if closed[cell]:
            continue
        closed[cell] = True
        if cell == goal:
            break
        row, column = cell // columns, cell % columns
        for dr in range(-1, 2):
            for dc in range(-1, 2):
                r, c = row + dr, column + dc
                if (dr == 0 and dc == 0) or r < 0 or c < 0 or r >= rows or c >= columns or not free[r, c]:
                    continue
                onward = cost[cell] + math.sqrt(dr * dr + dc * dc)
                other = r * columns + c
                if onward < cost[other]:
                    cost[other] = onward
                    parent[other] = cell
                    left = math.sqrt((r - goal_row) ** 2 + (c - goal_column) ** 2)
                    size = _push(heap_cost, heap_cell, size, onward + left, other)
    if not closed[goal]:
        return np.empty(0, np.int64)
    count, cell = 1, goal
    while cell != start:
        cell = parent[cell]
        count += 1
    path = np.empty(count, np.int64)
    cell = goal
    for k in range(count - 1, -1, -1):
        path[k] = cell
        cell = parent[cell]
    return path


@compiled
def _push(costs: DoubleArray, cells: IntArray, size: int, cost: float, cell: int) -> int:
    k = size
    while k > 0:
        above = (k - 1) // 2
        if costs[above] <= cost:
            break
        costs[k], cells[k] = costs[above], cells[above]
        k = above
    costs[k], cells[k] = cost, cell
    return size + 1


@compiled
def _pop(costs: DoubleArray, cells: IntArray, size: int) -> int:
    size -= 1
    cost, cell = costs[size], cells[size]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and costs[child + 1] < costs[child]:
            child += 1
        if costs[child] >= cost:
            break
        costs[k], cells[k] = costs[child], cells[child]
        k = child
    costs[k], cells[k] = cost, cell
    return size


@compiled
def pull_tight(free: BoolArray, origin: DoubleArray, resolution: float, points: DoubleArray) -> DoubleArray:
    """Drop every point of a path that can be cut short through free cells."""
    kept: DoubleArray = points
    while True:
        before = kept.shape[0]
        # Each round walks from the other end: one direction alone leaves corners on the far side.
        kept = _shortened(free, origin, resolution, kept)[::-1].copy()
        kept = _shortened(free, origin, resolution, kept)[::-1].copy()
        if kept.shape[0] == before:
            return kept


@compiled
def _shortened(free: BoolArray, origin: DoubleArray, resolution: float, points: DoubleArray) -> DoubleArray:
    out = np.empty_like(points)
    out[0] = points[0]
    count, at = 1, 0
    last = points.shape[0] - 1
    while at < last:
        to = at + 1
        for k in range(last, at + 1, -1):
            if _visible(free, origin, resolution, points[at], points[k]):
                to = k
                break
        out[count] = points[to]
        count += 1
        at = to
    shortened: DoubleArray = out[:count]
    return shortened


@compiled
def _visible(free: BoolArray, origin: DoubleArray, resolution: float, a: DoubleArray, b: DoubleArray) -> bool:
    """Whether the way from a to b stays in free cells, looked at every quarter of a cell."""
    steps = int(math.hypot(b[0] - a[0], b[1] - a[1]) / (0.25 * resolution)) + 1
    rows, columns = free.shape
    # The ends themselves may stand in for a free cell next to theirs.
    for k in range(1, steps):
        t = k / steps
        c = int(math.floor((a[0] + t * (b[0] - a[0]) - origin[0]) / resolution))
        r = int(math.floor((a[1] + t * (b[1] - a[1]) - origin[1]) / resolution))
        if r < 0 or c < 0 or r >= rows or c >= columns:
            return False
        near_end = min(t, 1.0 - t) * steps <= 6
        if not free[r, c] and not near_end:
            return False
    return True
