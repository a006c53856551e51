"""The compiled inner loops: tile index, ranges, contacts and motion. Arrays in, arrays out.

Everything here is numba and works on plain arrays, so that one small interface
(`index_segments`, `index_circles`, `scan`, `step`, `clearances`) is all that the simulator knows of. All
compiled functions live in this one file because numba's cache does not notice
changes in functions imported from another file. They release the GIL and share no
state, so the simulator runs them on plain threads, several ranges of robots or
worlds at once; numba's own thread pools would not survive being entered twice.

How ranges are found (angular rasterisation). For each sensor the segments are walked
tile by tile, nearest tiles first. A segment facing away is dropped by one cross
product. Its two ends are brought into the sensor's frame and mapped to the first beam
at or after them: direction -> pseudo-angle (one division, no arctangent) -> a lookup
table -> exact comparison. For the beams between, the *inverse* range is linear in the
beam's direction, ``1/r = n.d / n.p``: two multiplications and a maximum a beam, which
the compiler vectorises. Nothing is sampled or marched, so ranges are exact; ends
shared by two segments map to the same beam, so no beam slips between them. A tile that
lies wholly behind what is already seen is skipped.

Units: metres, radians, seconds, world frame, unless stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scanpilot.compiling import compiled
from scanpilot.types import BoolArray, DoubleArray, FloatArray

OBSTACLE = 1
VISIBLE = 2
LINKED = 4  # begins exactly where the segment before it in the same tile ends

# Free poses are at most this far apart along a motion that brushes past something, metres. A footprint
# is far wider than this, so nothing can pass between two checks, and a robot stops at most this far
# from what it hits.
_SHORTEST_ADVANCE = 2e-3
# A bite stops this far short of what is nearest, so that landing on it exactly is not taken for contact.
_STAND_OFF = 1e-3

_F = TypeVar("_F", bound=Callable[..., Any])
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]


def _inlined(function: _F) -> _F:
    return compiled(function, inline="always")


class Geometry(NamedTuple):
    """The static geometry of W worlds, each in its slot of fixed capacity.

    Attributes:
        frame: ``(W, 3)`` lowest x and y of the tile grid, and tile size.
        tiles: ``(W, 2)`` number of tiles in x and y.
        segment_start: ``(W, T + 1)`` where each tile's segments begin, row by row.
        circle_start: ``(W, T + 1)`` the same for circles.
        segments: ``(W, S, 4)`` in tile order, solid on the left.
        segment_flags: ``(W, S)``.
        circles: ``(W, C, 3)`` in tile order; one circle stands in every tile it reaches.
        circle_flags: ``(W, C)``.
        movers: ``(W, M, 3)`` moving discs x, y, radius; radius below 0 is none.
    """

    frame: DoubleArray
    tiles: IntArray
    segment_start: IntArray
    circle_start: IntArray
    segments: DoubleArray
    segment_flags: ByteArray
    circles: DoubleArray
    circle_flags: ByteArray
    movers: DoubleArray


class Body(NamedTuple):
    """The footprint all robots share.

    Attributes:
        polygon: ``(P, 2)`` convex, counter-clockwise, base_link; P = 0 for a circle.
        radius: of the circle, or of the circle around the polygon, metres.
        outline: ``(Q, 2)`` convex, counter-clockwise, what lidars of other robots see; Q = 0 for a circle.
        outline_radius: of the circle, or of the circle around the outline, metres.
        visible: whether robots see each other.
        solid: whether robots hit each other.
    """

    polygon: DoubleArray
    radius: float
    outline: DoubleArray
    outline_radius: float
    visible: bool
    solid: bool


class Beams(NamedTuple):
    """Beam directions of one lidar in its *first beam's* frame, so that directions only grow.

    Attributes:
        dx, dy: ``(n,)`` unit directions.
        pseudo: ``(n,)`` pseudo-angle in [0, 4) of each.
        table: ``(K + 1,)`` first beam whose pseudo-angle is at least ``4 k / K``.
        mounts: ``(N, 3)`` of each robot's lidar: x, y in base_link, and direction of the first beam there.
        range_max: metres.
    """

    dx: DoubleArray
    dy: DoubleArray
    pseudo: DoubleArray
    table: NDArray[np.int32]
    mounts: DoubleArray
    range_max: float


@compiled
def pseudo_angle(x: float, y: float) -> float:
    """A number in [0, 4) that grows with the direction of (x, y), as the angle does; 0 for +x."""
    t = x / (abs(x) + abs(y))
    if y >= 0.0:
        return 1.0 - t
    return 3.0 + t


# --- tile index -------------------------------------------------------------------------------------------


@compiled
def index_segments(
    segments: DoubleArray, flags: ByteArray, frame: DoubleArray, nx: int, ny: int
) -> tuple[DoubleArray, ByteArray, IntArray]:
    """Cut ``(S, 4)`` segments at tile borders and sort the pieces by tile, keeping their order.

    Returns:
        pieces ``(S', 4)``, their flags, and where each tile's pieces begin ``(nx * ny + 1,)``.
    """
    starts = np.zeros(nx * ny + 1, np.int64)
    pieces = np.zeros((0, 4), np.float64)
    piece_flags = np.zeros(0, np.uint8)
    fill = np.zeros(nx * ny, np.int64)
    for writing in range(2):
        for s in range(segments.shape[0]):
            x0, y0, x1, y1 = segments[s, 0], segments[s, 1], segments[s, 2], segments[s, 3]
            t, px, py = 0.0, x0, y0
            while t < 1.0:
                # The next border crossed, a little beyond the present point.
                u = 1.0
                u = min(u, _next_border(px, x0, x1, frame[0], frame[2]))
                u = min(u, _next_border(py, y0, y1, frame[1], frame[2]))
                qx, qy = (x1, y1) if u >= 1.0 else (x0 + u * (x1 - x0), y0 + u * (y1 - y0))
                if u > t and (qx != px or qy != py):
                    i = min(max(math.floor((0.5 * (px + qx) - frame[0]) / frame[2]), 0), nx - 1)
                    j = min(max(math.floor((0.5 * (py + qy) - frame[1]) / frame[2]), 0), ny - 1)
                    tile = j * nx + i
                    if writing == 0:
                        starts[tile + 1] += 1
                    else:
                        k = fill[tile]
                        fill[tile] = k + 1
                        pieces[k, 0], pieces[k, 1], pieces[k, 2], pieces[k, 3] = px, py, qx, qy
                        flag = flags[s] & (OBSTACLE | VISIBLE)
                        if k > starts[tile] and pieces[k - 1, 2] == px and pieces[k - 1, 3] == py:
                            flag |= LINKED
                        piece_flags[k] = flag
                t, px, py = max(u, np.nextafter(t, 2.0)), qx, qy
        if writing == 0:
            for tile in range(nx * ny):
                starts[tile + 1] += starts[tile]
            fill[:] = starts[:-1]
            pieces = np.zeros((starts[-1], 4), np.float64)
            piece_flags = np.zeros(starts[-1], np.uint8)
    return pieces, piece_flags, starts


@compiled
def _next_border(p: float, a: float, b: float, origin: float, size: float) -> float:
    """Where along a..b (0 to 1) the tile border next after ``p`` is crossed; above 1 for none."""
    if b == a:
        return 2.0
    slack = 1e-9 * size
    if b > a:
        border = origin + (math.floor((p + slack - origin) / size) + 1.0) * size
    else:
        border = origin + (math.ceil((p - slack - origin) / size) - 1.0) * size
    return (border - a) / (b - a)


@compiled
def index_circles(
    circles: DoubleArray, flags: ByteArray, frame: DoubleArray, nx: int, ny: int
) -> tuple[DoubleArray, ByteArray, IntArray]:
    """List ``(C, 3)`` circles in every tile that their bounding square reaches."""
    starts = np.zeros(nx * ny + 1, np.int64)
    listed = np.zeros((0, 3), np.float64)
    listed_flags = np.zeros(0, np.uint8)
    fill = np.zeros(nx * ny, np.int64)
    for writing in range(2):
        for c in range(circles.shape[0]):
            x, y, r = circles[c, 0], circles[c, 1], circles[c, 2]
            i0 = min(max(math.floor((x - r - frame[0]) / frame[2]), 0), nx - 1)
            i1 = min(max(math.floor((x + r - frame[0]) / frame[2]), 0), nx - 1)
            j0 = min(max(math.floor((y - r - frame[1]) / frame[2]), 0), ny - 1)
            j1 = min(max(math.floor((y + r - frame[1]) / frame[2]), 0), ny - 1)
            for j in range(j0, j1 + 1):
                for i in range(i0, i1 + 1):
                    tile = j * nx + i
                    if writing == 0:
                        starts[tile + 1] += 1
                    else:
                        k = fill[tile]
                        fill[tile] = k + 1
                        listed[k, 0], listed[k, 1], listed[k, 2] = x, y, r
                        listed_flags[k] = flags[c]
        if writing == 0:
            for tile in range(nx * ny):
                starts[tile + 1] += starts[tile]
            fill[:] = starts[:-1]
            listed = np.zeros((starts[-1], 3), np.float64)
            listed_flags = np.zeros(starts[-1], np.uint8)
    return listed, listed_flags, starts


# --- ranges -----------------------------------------------------------------------------------------------


@compiled
def _first_beam(psi: float, pseudo: DoubleArray, table: NDArray[np.int32]) -> int:
    """Index of the first beam at or after pseudo-angle ``psi``; n when there is none."""
    b: int = table[np.uint64(psi * (0.25 * (table.shape[0] - 1)))]
    n = pseudo.shape[0]
    while b < n and pseudo[np.uint64(b)] < psi:
        b += 1
    return b


@_inlined
def _raise_line(
    near: DoubleArray, dx: DoubleArray, dy: DoubleArray, lo: int, hi: int, a: float, b: float
) -> None:
    """Take the inverse range ``a dx + b dy`` into beams lo..hi-1 where it is the larger."""
    for k in range(np.uint64(lo), np.uint64(hi)):
        q = a * dx[k] + b * dy[k]
        near[k] = q if q > near[k] else near[k]


@compiled
def _raise_span(
    near: DoubleArray, dx: DoubleArray, dy: DoubleArray, lo: int, hi: int, crosses: bool, a: float, b: float
) -> None:
    """`_raise_line` from beam lo counter-clockwise to beam hi-1, if need be through the first direction."""
    if crosses:
        _raise_line(near, dx, dy, lo, near.shape[0], a, b)
        _raise_line(near, dx, dy, 0, hi, a, b)
    else:
        _raise_line(near, dx, dy, lo, hi, a, b)


@_inlined
def _raise_arc(
    near: DoubleArray, dx: DoubleArray, dy: DoubleArray, lo: int, hi: int, x: float, y: float, k: float
) -> None:
    """`_raise_line` for a circle about (x, y) whose tangents from the sensor have length sqrt(k)."""
    inverse = 1.0 / k
    for i in range(np.uint64(lo), np.uint64(hi)):
        t = x * dx[i] + y * dy[i]
        under = t * t - k
        q = (t + math.sqrt(under if under > 0.0 else 0.0)) * inverse
        near[i] = q if q > near[i] else near[i]


@compiled
def _see_circle(near: DoubleArray, beams: Beams, x: float, y: float, radius: float) -> None:
    """Take the circle about (x, y) in the sensor's frame into the inverse ranges."""
    k = x * x + y * y - radius * radius
    if k <= 0.0:
        return
    s = math.sqrt(k)
    right = pseudo_angle(x * s + y * radius, y * s - x * radius)
    left = pseudo_angle(x * s - y * radius, y * s + x * radius)
    lo = _first_beam(right, beams.pseudo, beams.table)
    hi = _first_beam(left, beams.pseudo, beams.table)
    if right > left:
        _raise_arc(near, beams.dx, beams.dy, lo, near.shape[0], x, y, k)
        _raise_arc(near, beams.dx, beams.dy, 0, hi, x, y, k)
    else:
        _raise_arc(near, beams.dx, beams.dy, lo, hi, x, y, k)


@compiled
def _see_segment(near: DoubleArray, beams: Beams, ax: float, ay: float, bx: float, by: float) -> None:
    """Take one segment in the sensor's frame, solid on its left, into the inverse ranges."""
    c = ax * by - ay * bx
    if c >= 0.0:
        return
    right, left = pseudo_angle(bx, by), pseudo_angle(ax, ay)
    lo = _first_beam(right, beams.pseudo, beams.table)
    hi = _first_beam(left, beams.pseudo, beams.table)
    _raise_span(near, beams.dx, beams.dy, lo, hi, right > left, (by - ay) / c, (ax - bx) / c)


@compiled
def _see_tile_segments(
    near: DoubleArray,
    beams: Beams,
    segments: DoubleArray,
    flags: ByteArray,
    first: int,
    last: int,
    ox: float,
    oy: float,
    cos: float,
    sin: float,
) -> None:
    """Take segments first..last-1 of one world into the inverse ranges of the sensor at (ox, oy)."""
    end_psi, end_beam, known = 0.0, 0, False
    for s in range(first, last):
        k = np.uint64(s)
        flag = flags[k]
        ax, ay = segments[k, 0] - ox, segments[k, 1] - oy
        bx, by = segments[k, 2] - ox, segments[k, 3] - oy
        c = ax * by - ay * bx
        if c >= 0.0 or not flag & VISIBLE:
            known = False
            continue
        if known and flag & LINKED:
            left, hi = end_psi, end_beam
        else:
            left = pseudo_angle(cos * ax + sin * ay, cos * ay - sin * ax)
            hi = _first_beam(left, beams.pseudo, beams.table)
        right = pseudo_angle(cos * bx + sin * by, cos * by - sin * bx)
        lo = _first_beam(right, beams.pseudo, beams.table)
        end_psi, end_beam, known = right, lo, True
        crosses = right > left
        if lo == hi and not crosses:
            continue
        inverse = 1.0 / c
        nx, ny = (by - ay) * inverse, (ax - bx) * inverse
        _raise_span(near, beams.dx, beams.dy, lo, hi, crosses, cos * nx + sin * ny, cos * ny - sin * nx)


@compiled
def _hidden(
    near: DoubleArray,
    beams: Beams,
    x0: float,
    y0: float,
    x1: float,
    y1: float,
    ox: float,
    oy: float,
    cos: float,
    sin: float,
) -> bool:
    """Whether every beam into the rectangle x0..x1, y0..y1 already ends before it."""
    # The distance to the rectangle, and the two corners that bound it as seen from outside.
    left_of, right_of, below, above = ox < x0, ox > x1, oy < y0, oy > y1
    gx = x0 - ox if left_of else (ox - x1 if right_of else 0.0)
    gy = y0 - oy if below else (oy - y1 if above else 0.0)
    d2 = gx * gx + gy * gy
    if d2 <= 0.0:
        return False
    if left_of:
        rx, ry = (x1 if below else x0), y0
        lx, ly = (x1 if above else x0), y1
    elif right_of:
        rx, ry = (x0 if above else x1), y1
        lx, ly = (x0 if below else x1), y0
    elif below:
        rx, ry, lx, ly = x1, y0, x0, y0
    else:
        rx, ry, lx, ly = x0, y1, x1, y1
    rx, ry, lx, ly = rx - ox, ry - oy, lx - ox, ly - oy
    right = pseudo_angle(cos * rx + sin * ry, cos * ry - sin * rx)
    left = pseudo_angle(cos * lx + sin * ly, cos * ly - sin * lx)
    lo = _first_beam(right, beams.pseudo, beams.table)
    hi = _first_beam(left, beams.pseudo, beams.table)
    limit = 1.0 / math.sqrt(d2)
    if right > left:
        return _all_above(near, lo, near.shape[0], limit) and _all_above(near, 0, hi, limit)
    return _all_above(near, lo, hi, limit)


@compiled
def _all_above(near: DoubleArray, lo: int, hi: int, limit: float) -> bool:
    for k in range(np.uint64(lo), np.uint64(hi)):  # noqa: SIM110 - a generator would not compile to a loop
        if near[k] < limit:
            return False
    return True


@compiled
def _see_world(
    near: DoubleArray, beams: Beams, geometry: Geometry, w: int, ox: float, oy: float, cos: float, sin: float
) -> None:
    """Take the static geometry of world ``w`` into the inverse ranges, nearest tiles first."""
    gx, gy, size = geometry.frame[w, 0], geometry.frame[w, 1], geometry.frame[w, 2]
    nx, ny = geometry.tiles[w, 0], geometry.tiles[w, 1]
    i0 = min(max(math.floor((ox - gx) / size), 0), nx - 1)
    j0 = min(max(math.floor((oy - gy) / size), 0), ny - 1)
    rings = max(max(i0, nx - 1 - i0), max(j0, ny - 1 - j0))
    segments, flags = geometry.segments[w], geometry.segment_flags[w]
    circles, circle_flags = geometry.circles[w], geometry.circle_flags[w]
    for ring in range(rings + 1):
        if (ring - 1) * size > beams.range_max:
            break
        for j in range(max(j0 - ring, 0), min(j0 + ring, ny - 1) + 1):
            stride = 1 if (j == j0 - ring or j == j0 + ring or ring == 0) else 2 * ring
            for i in range(i0 - ring, i0 + ring + 1, stride):
                if i < 0 or i >= nx:
                    continue
                tile = j * nx + i
                first, last = geometry.segment_start[w, tile], geometry.segment_start[w, tile + 1]
                circle_first, circle_last = geometry.circle_start[w, tile], geometry.circle_start[w, tile + 1]
                if first == last and circle_first == circle_last:
                    continue
                if ring > 0:
                    x0, y0 = gx + i * size, gy + j * size
                    if _hidden(near, beams, x0, y0, x0 + size, y0 + size, ox, oy, cos, sin):
                        continue
                _see_tile_segments(near, beams, segments, flags, first, last, ox, oy, cos, sin)
                for k in range(circle_first, circle_last):
                    if circle_flags[k] & VISIBLE:
                        x, y = circles[k, 0] - ox, circles[k, 1] - oy
                        _see_circle(near, beams, cos * x + sin * y, cos * y - sin * x, circles[k, 2])


@compiled
def _see_robots(
    near: DoubleArray,
    beams: Beams,
    body: Body,
    poses: DoubleArray,
    first: int,
    last: int,
    own: int,
    ox: float,
    oy: float,
    cos: float,
    sin: float,
) -> None:
    """Take the other robots of the world, first..last-1 but ``own``, into the inverse ranges."""
    reach = beams.range_max + body.outline_radius
    corners = body.outline.shape[0]
    for other in range(first, last):
        if other == own:
            continue
        x, y = poses[other, 0] - ox, poses[other, 1] - oy
        if x * x + y * y >= reach * reach:
            continue
        x, y = cos * x + sin * y, cos * y - sin * x
        if corners == 0:
            _see_circle(near, beams, x, y, body.outline_radius)
            continue
        c, s = math.cos(poses[other, 2]), math.sin(poses[other, 2])
        c, s = c * cos + s * sin, s * cos - c * sin
        ax = x + c * body.outline[corners - 1, 0] - s * body.outline[corners - 1, 1]
        ay = y + s * body.outline[corners - 1, 0] + c * body.outline[corners - 1, 1]
        for k in range(corners):
            bx = x + c * body.outline[k, 0] - s * body.outline[k, 1]
            by = y + s * body.outline[k, 0] + c * body.outline[k, 1]
            _see_segment(near, beams, ax, ay, bx, by)
            ax, ay = bx, by


@compiled
def scan(
    geometry: Geometry,
    body: Body,
    beams: Beams,
    poses: DoubleArray,
    robots_per_world: int,
    robots: IntArray,
    begin: int,
    end: int,
    ranges: FloatArray,
) -> None:
    """Ranges of ``robots[begin:end]`` into the rows begin..end-1 of ``ranges``; a miss is ``range_max``."""
    n = beams.dx.shape[0]
    near = np.empty(n, np.float64)
    far = 1.0 / beams.range_max
    for row in range(begin, end):
        robot = robots[row]
        w = robot // robots_per_world
        c, s = math.cos(poses[robot, 2]), math.sin(poses[robot, 2])
        mount_x, mount_y = beams.mounts[robot, 0], beams.mounts[robot, 1]
        ox = poses[robot, 0] + c * mount_x - s * mount_y
        oy = poses[robot, 1] + s * mount_x + c * mount_y
        direction = poses[robot, 2] + beams.mounts[robot, 2]
        cos, sin = math.cos(direction), math.sin(direction)
        near[:] = far
        if body.visible:
            first = w * robots_per_world
            _see_robots(near, beams, body, poses, first, first + robots_per_world, robot, ox, oy, cos, sin)
        for m in range(geometry.movers.shape[1]):
            radius = geometry.movers[w, m, 2]
            if radius > 0.0:
                x, y = geometry.movers[w, m, 0] - ox, geometry.movers[w, m, 1] - oy
                _see_circle(near, beams, cos * x + sin * y, cos * y - sin * x, radius)
        _see_world(near, beams, geometry, w, ox, oy, cos, sin)
        for k in range(n):
            ranges[row, k] = beams.range_max if near[k] <= far else 1.0 / near[k]


# --- distances --------------------------------------------------------------------------------------------


@_inlined
def _point_segment2(px: float, py: float, ax: float, ay: float, bx: float, by: float) -> float:
    """Squared distance of a point to a segment."""
    ex, ey = bx - ax, by - ay
    fx, fy = px - ax, py - ay
    t = (fx * ex + fy * ey) / (ex * ex + ey * ey)
    t = min(max(t, 0.0), 1.0)
    gx, gy = fx - t * ex, fy - t * ey
    return gx * gx + gy * gy


@compiled
def _polygon_segment(polygon: DoubleArray, ax: float, ay: float, bx: float, by: float) -> float:
    """Distance of a convex counter-clockwise polygon to a segment in its frame; 0 where they meet."""
    n = polygon.shape[0]
    t0, t1 = 0.0, 1.0
    ex, ey = bx - ax, by - ay
    px, py = polygon[n - 1, 0], polygon[n - 1, 1]
    best = math.inf
    apart = False
    for k in range(n):
        qx, qy = polygon[k, 0], polygon[k, 1]
        # Clip the segment by the inner side of the edge p..q.
        ux, uy = qx - px, qy - py
        from_a = ux * (ay - py) - uy * (ax - px)
        along = ux * ey - uy * ex
        if along == 0.0:
            apart = apart or from_a < 0.0
        elif along > 0.0:
            t0 = max(t0, -from_a / along)
        else:
            t1 = min(t1, -from_a / along)
        best = min(best, _point_segment2(qx, qy, ax, ay, bx, by))
        best = min(best, _point_segment2(ax, ay, px, py, qx, qy))
        best = min(best, _point_segment2(bx, by, px, py, qx, qy))
        px, py = qx, qy
    if not apart and t0 <= t1:
        return 0.0
    return math.sqrt(best)


@compiled
def _polygon_point(polygon: DoubleArray, x: float, y: float) -> float:
    """Distance of a convex counter-clockwise polygon to a point in its frame; 0 inside."""
    n = polygon.shape[0]
    px, py = polygon[n - 1, 0], polygon[n - 1, 1]
    best = math.inf
    inside = True
    for k in range(n):
        qx, qy = polygon[k, 0], polygon[k, 1]
        inside = inside and (qx - px) * (y - py) - (qy - py) * (x - px) >= 0.0
        best = min(best, _point_segment2(x, y, px, py, qx, qy))
        px, py = qx, qy
    return 0.0 if inside else math.sqrt(best)


@compiled
def static_clearance(
    geometry: Geometry, w: int, body: Body, x: float, y: float, cos: float, sin: float, limit: float
) -> float:
    """Distance of a footprint at a pose to the static geometry; ``limit`` when it is no nearer."""
    gx, gy, size = geometry.frame[w, 0], geometry.frame[w, 1], geometry.frame[w, 2]
    nx, ny = geometry.tiles[w, 0], geometry.tiles[w, 1]
    i0 = min(max(math.floor((x - gx) / size), 0), nx - 1)
    j0 = min(max(math.floor((y - gy) / size), 0), ny - 1)
    # From the point (or the nearest point of the grid) to the border of its tile.
    border = min(
        min(max(x - gx - i0 * size, 0.0), max(gx + (i0 + 1) * size - x, 0.0)),
        min(max(y - gy - j0 * size, 0.0), max(gy + (j0 + 1) * size - y, 0.0)),
    )
    rings = max(max(i0, nx - 1 - i0), max(j0, ny - 1 - j0))
    segments, flags = geometry.segments[w], geometry.segment_flags[w]
    circles, circle_flags = geometry.circles[w], geometry.circle_flags[w]
    polygonal = body.polygon.shape[0] > 0
    best = limit
    for ring in range(rings + 1):
        if ring > 0 and (ring - 1) * size + border - body.radius >= best:
            break
        for j in range(max(j0 - ring, 0), min(j0 + ring, ny - 1) + 1):
            stride = 1 if (j == j0 - ring or j == j0 + ring or ring == 0) else 2 * ring
            for i in range(i0 - ring, i0 + ring + 1, stride):
                if i < 0 or i >= nx:
                    continue
                tile = j * nx + i
                for k in range(geometry.segment_start[w, tile], geometry.segment_start[w, tile + 1]):
                    if not flags[k] & OBSTACLE:
                        continue
                    ax, ay = segments[k, 0] - x, segments[k, 1] - y
                    bx, by = segments[k, 2] - x, segments[k, 3] - y
                    reach = best + body.radius
                    d2 = _point_segment2(0.0, 0.0, ax, ay, bx, by)
                    if d2 >= reach * reach:
                        continue
                    if polygonal:
                        ax, ay = cos * ax + sin * ay, cos * ay - sin * ax
                        bx, by = cos * bx + sin * by, cos * by - sin * bx
                        best = min(best, _polygon_segment(body.polygon, ax, ay, bx, by))
                    else:
                        best = min(best, math.sqrt(d2) - body.radius)
                for k in range(geometry.circle_start[w, tile], geometry.circle_start[w, tile + 1]):
                    if circle_flags[k] & OBSTACLE:
                        best = min(
                            best,
                            _disc_clearance(
                                body, circles[k, 0] - x, circles[k, 1] - y, circles[k, 2], cos, sin, best
                            ),
                        )
    return best


@compiled
def _disc_clearance(
    body: Body, x: float, y: float, radius: float, cos: float, sin: float, limit: float
) -> float:
    """Distance of the footprint to a disc at (x, y) relative to it, in world directions."""
    reach = limit + body.radius + radius
    d2 = x * x + y * y
    if reach < 0.0 or d2 >= reach * reach:
        return limit
    if body.polygon.shape[0] == 0:
        return math.sqrt(d2) - body.radius - radius
    return _polygon_point(body.polygon, cos * x + sin * y, cos * y - sin * x) - radius


@compiled
def _robot_clearance(
    body: Body,
    poses: DoubleArray,
    first: int,
    last: int,
    own: int,
    x: float,
    y: float,
    cos: float,
    sin: float,
    limit: float,
) -> float:
    """Distance of robot ``own``'s footprint at a pose to the other robots first..last-1."""
    best = limit
    corners = body.polygon.shape[0]
    for other in range(first, last):
        if other == own:
            continue
        ox, oy = poses[other, 0] - x, poses[other, 1] - y
        reach = best + 2.0 * body.radius
        d2 = ox * ox + oy * oy
        if reach < 0.0 or d2 >= reach * reach:
            continue
        if corners == 0:
            best = math.sqrt(d2) - 2.0 * body.radius
            continue
        ox, oy = cos * ox + sin * oy, cos * oy - sin * ox
        c, s = math.cos(poses[other, 2]), math.sin(poses[other, 2])
        c, s = c * cos + s * sin, s * cos - c * sin
        ax = ox + c * body.polygon[corners - 1, 0] - s * body.polygon[corners - 1, 1]
        ay = oy + s * body.polygon[corners - 1, 0] + c * body.polygon[corners - 1, 1]
        for k in range(corners):
            bx = ox + c * body.polygon[k, 0] - s * body.polygon[k, 1]
            by = oy + s * body.polygon[k, 0] + c * body.polygon[k, 1]
            best = min(best, _polygon_segment(body.polygon, ax, ay, bx, by))
            ax, ay = bx, by
    return best


@compiled
def _clearance(
    geometry: Geometry,
    w: int,
    body: Body,
    poses: DoubleArray,
    first: int,
    last: int,
    own: int,
    x: float,
    y: float,
    yaw: float,
    limit: float,
) -> float:
    """Distance of robot ``own``'s footprint, were it at (x, y, yaw), to everything; at most ``limit``."""
    cos, sin = 1.0, 0.0
    if body.polygon.shape[0] > 0:
        cos, sin = math.cos(yaw), math.sin(yaw)
    best = limit
    if body.solid:
        best = _robot_clearance(body, poses, first, last, own, x, y, cos, sin, best)
    for m in range(geometry.movers.shape[1]):
        if geometry.movers[w, m, 2] > 0.0:
            best = min(
                best,
                _disc_clearance(
                    body,
                    geometry.movers[w, m, 0] - x,
                    geometry.movers[w, m, 1] - y,
                    geometry.movers[w, m, 2],
                    cos,
                    sin,
                    best,
                ),
            )
    return static_clearance(geometry, w, body, x, y, cos, sin, best)


@compiled
def clearances(
    geometry: Geometry,
    body: Body,
    poses: DoubleArray,
    robots_per_world: int,
    begin: int,
    end: int,
    limit: float,
    out: DoubleArray,
) -> None:
    """Distance of robots begin..end-1 to the nearest obstacle or robot; at most ``limit``."""
    for robot in range(begin, end):
        w = robot // robots_per_world
        first = w * robots_per_world
        out[robot] = _clearance(
            geometry,
            w,
            body,
            poses,
            first,
            first + robots_per_world,
            robot,
            poses[robot, 0],
            poses[robot, 1],
            poses[robot, 2],
            limit,
        )


# --- motion -----------------------------------------------------------------------------------------------


class Base(NamedTuple):
    """How the mobile base moves.

    Attributes:
        speed: largest |vx|, |vy|, |wz|.
        acceleration: largest change of each per second; may be infinite.
        turning_radius: of a car, metres; 0 for others.
        euler: Stage's integration: position with the old heading, and the whole step undone on contact.
    """

    speed: tuple[float, float, float]
    acceleration: tuple[float, float, float]
    turning_radius: float
    euler: bool


@compiled
def _ramp(now: float, target: float, acceleration: float, duration: float) -> tuple[float, float]:
    """Velocity after ``duration`` of approaching ``target``, and its mean meanwhile."""
    change = target - now
    reach = acceleration * duration
    if abs(change) <= reach:
        # Arrives after |change| / acceleration, then holds.
        ramp = abs(change) / acceleration if acceleration < math.inf else 0.0
        mean = target - 0.5 * change * ramp / duration
        return target, mean
    step = math.copysign(reach, change)
    return now + step, now + 0.5 * step


@compiled
def _moved(
    x: float, y: float, yaw: float, dx: float, dy: float, turn: float, euler: bool
) -> tuple[float, float, float]:
    """Pose after moving along the arc whose length components are dx, dy (base_link) while turning."""
    c, s = math.cos(yaw), math.sin(yaw)
    if not euler and turn != 0.0:
        if abs(turn) < 1e-4:
            # Series of sin(t)/t and (1 - cos t)/t: their quotients lose digits here.
            a, b = 1.0 - turn * turn / 6.0, 0.5 * turn
        else:
            a, b = math.sin(turn) / turn, (1.0 - math.cos(turn)) / turn
        dx, dy = a * dx - b * dy, b * dx + a * dy
    heading = yaw + turn
    if heading >= math.pi:
        heading -= 2.0 * math.pi
    elif heading < -math.pi:
        heading += 2.0 * math.pi
    return x + c * dx - s * dy, y + s * dx + c * dy, heading


@compiled
def _sweep(
    geometry: Geometry,
    w: int,
    body: Body,
    poses: DoubleArray,
    first: int,
    last: int,
    robot: int,
    dx: float,
    dy: float,
    turn: float,
    euler: bool,
) -> bool:
    """Move a robot along its arc as far as it is free; returns whether it met something.

    Conservative advancement: the footprint can move its clearance without touching anything,
    so the arc is covered in such bites, and in `_SHORTEST_ADVANCE` where it brushes along.
    """
    x, y, yaw = poses[robot, 0], poses[robot, 1], poses[robot, 2]
    length = math.hypot(dx, dy)
    if body.polygon.shape[0] > 0:
        length += abs(turn) * body.radius
    if length == 0.0:
        poses[robot, 2] = _moved(x, y, yaw, 0.0, 0.0, turn, euler)[2]
        return False
    if euler:
        to = _moved(x, y, yaw, dx, dy, turn, True)
        d = _clearance(geometry, w, body, poses, first, last, robot, to[0], to[1], to[2], 1e-3)
        if d > 0.0:
            poses[robot, 0], poses[robot, 1], poses[robot, 2] = to
        return d <= 0.0
    done = 0.0
    slack = 1e-9
    d = _clearance(geometry, w, body, poses, first, last, robot, x, y, yaw, length + 2 * slack)
    if d <= 0.0:
        return True
    while True:
        if d > (1.0 - done) * length + slack:
            poses[robot, 0], poses[robot, 1], poses[robot, 2] = _moved(x, y, yaw, dx, dy, turn, False)
            return False
        to_done = min(1.0, done + max(d - _STAND_OFF, _SHORTEST_ADVANCE) / length)
        to = _moved(x, y, yaw, to_done * dx, to_done * dy, to_done * turn, False)
        limit = max((1.0 - to_done) * length, 0.0) + 2 * slack
        d = _clearance(geometry, w, body, poses, first, last, robot, to[0], to[1], to[2], limit)
        if d <= 0.0:
            return True
        poses[robot, 0], poses[robot, 1], poses[robot, 2] = to
        done = to_done
        if done >= 1.0:
            return False


@compiled
def step(
    geometry: Geometry,
    body: Body,
    base: Base,
    poses: DoubleArray,
    twists: DoubleArray,
    odometry: DoubleArray,
    drift: DoubleArray,
    commands: DoubleArray,
    duration: float,
    robots_per_world: int,
    begin: int,
    end: int,
    contacts: BoolArray,
) -> None:
    """Advance worlds begin..end-1 by one short duration; robots move in turn, each against the others.

    Args:
        drift: ``(N, 3)`` factors with which odometry reports forward, lateral and turning motion.
        commands: ``(N, 3)`` target velocities.
        contacts: ``(N,)`` set where a robot meets something; a robot already set does not move.
    """
    for w in range(begin, end):
        first = w * robots_per_world
        last = first + robots_per_world
        for robot in range(first, last):
            if contacts[robot]:
                continue
            vx, mean_x = _ramp_axis(base, twists, commands, robot, 0, duration)
            vy, mean_y = _ramp_axis(base, twists, commands, robot, 1, duration)
            wz, mean_w = _ramp_axis(base, twists, commands, robot, 2, duration)
            if base.turning_radius > 0.0:
                wz = _steerable(wz, vx, base.turning_radius)
                mean_w = _steerable(mean_w, mean_x, base.turning_radius)
            x, y, yaw = poses[robot, 0], poses[robot, 1], poses[robot, 2]
            met = _sweep(
                geometry,
                w,
                body,
                poses,
                first,
                last,
                robot,
                mean_x * duration,
                mean_y * duration,
                mean_w * duration,
                base.euler,
            )
            if met:
                contacts[robot] = True
                vx, vy, wz = 0.0, 0.0, 0.0
            twists[robot, 0], twists[robot, 1], twists[robot, 2] = vx, vy, wz
            _advance_odometry(odometry, drift, poses, robot, x, y, yaw)


@compiled
def _ramp_axis(
    base: Base, twists: DoubleArray, commands: DoubleArray, robot: int, axis: int, duration: float
) -> tuple[float, float]:
    target = min(max(commands[robot, axis], -base.speed[axis]), base.speed[axis])
    return _ramp(twists[robot, axis], target, base.acceleration[axis], duration)


@compiled
def _steerable(wz: float, vx: float, turning_radius: float) -> float:
    bound = abs(vx) / turning_radius
    return min(max(wz, -bound), bound)


@compiled
def _advance_odometry(
    odometry: DoubleArray, drift: DoubleArray, poses: DoubleArray, robot: int, x: float, y: float, yaw: float
) -> None:
    """Add a robot's motion since (x, y, yaw), as its wheels would report it, to its odometry."""
    c, s = math.cos(yaw), math.sin(yaw)
    gx, gy = poses[robot, 0] - x, poses[robot, 1] - y
    turn = (poses[robot, 2] - yaw + math.pi) % (2.0 * math.pi) - math.pi
    dx, dy = (c * gx + s * gy) * drift[robot, 0], (c * gy - s * gx) * drift[robot, 1]
    heading = odometry[robot, 2]
    c, s = math.cos(heading), math.sin(heading)
    odometry[robot, 0] += c * dx - s * dy
    odometry[robot, 1] += s * dx + c * dy
    heading += turn * drift[robot, 2]
    odometry[robot, 2] = (heading + math.pi) % (2.0 * math.pi) - math.pi


# --- walkers ----------------------------------------------------------------------------------------------


@compiled
def walk(
    geometry: Geometry,
    body: Body,
    poses: DoubleArray,
    robots_per_world: int,
    targets: DoubleArray,
    speeds: DoubleArray,
    duration: float,
    margin: float,
) -> None:
    """Move the discs of all worlds towards ``(W, M, 2)`` targets at ``(W, M)`` speeds; they move in turn.

    Each leans away and aside from discs and robots in its way, and stands still rather than come
    nearer than ``margin`` to anything.
    """
    movers = geometry.movers
    for w in range(movers.shape[0]):
        first = w * robots_per_world
        for m in range(movers.shape[1]):
            radius = movers[w, m, 2]
            if radius <= 0.0:
                continue
            x, y = movers[w, m, 0], movers[w, m, 1]
            dx, dy = targets[w, m, 0] - x, targets[w, m, 1] - y
            distance = math.hypot(dx, dy)
            if distance < 1e-9 or speeds[w, m] <= 0.0:
                continue
            ux, uy = dx / distance, dy / distance
            lean_x, lean_y = ux, uy
            for other in range(movers.shape[1]):
                if other != m and movers[w, other, 2] > 0.0:
                    lean = _lean(
                        ux, uy, movers[w, other, 0] - x, movers[w, other, 1] - y, radius + movers[w, other, 2]
                    )
                    lean_x, lean_y = lean_x + lean[0], lean_y + lean[1]
            for robot in range(first, first + robots_per_world):
                lean = _lean(ux, uy, poses[robot, 0] - x, poses[robot, 1] - y, radius + body.radius)
                lean_x, lean_y = lean_x + lean[0], lean_y + lean[1]
            norm = max(math.hypot(lean_x, lean_y), 1e-9)
            length = min(speeds[w, m] * duration, distance)
            # As it leans, else straight on, else not at all.
            if not _stride(
                geometry,
                w,
                m,
                body,
                poses,
                first,
                robots_per_world,
                lean_x / norm,
                lean_y / norm,
                length,
                margin,
            ):
                _stride(geometry, w, m, body, poses, first, robots_per_world, ux, uy, length, margin)


@compiled
def _lean(ux: float, uy: float, x: float, y: float, contact: float) -> tuple[float, float]:
    """How a walker with heading (ux, uy) is pushed by someone at (x, y) that it touches at ``contact``."""
    distance = math.hypot(x, y)
    gap = distance - contact
    if gap > 1.5 or distance < 1e-9:
        return 0.0, 0.0
    x, y = x / distance, y / distance
    ahead = ux * x + uy * y
    if ahead < -0.2:
        return 0.0, 0.0
    push = 1.5 * math.exp(-max(gap, 0.0) / 0.4)
    # Aside to the right of the other, so that two who meet pass each other.
    return push * (-0.6 * x + 0.8 * y), push * (-0.6 * y - 0.8 * x)


@compiled
def _stride(
    geometry: Geometry,
    w: int,
    m: int,
    body: Body,
    poses: DoubleArray,
    first: int,
    robots_per_world: int,
    ux: float,
    uy: float,
    length: float,
    margin: float,
) -> bool:
    """Move one disc if every tenth of a metre of the way is free; returns whether it moved."""
    movers = geometry.movers
    radius = movers[w, m, 2]
    point = Body(body.polygon[:0], radius, body.polygon[:0], radius, True, True)
    pieces = int(length / 0.1) + 1
    for piece in range(1, pieces + 1):
        x = movers[w, m, 0] + ux * length * piece / pieces
        y = movers[w, m, 1] + uy * length * piece / pieces
        for other in range(movers.shape[1]):
            if other != m and movers[w, other, 2] > 0.0:
                apart = radius + movers[w, other, 2] + margin
                if (movers[w, other, 0] - x) ** 2 + (movers[w, other, 1] - y) ** 2 < apart * apart:
                    return False
        for robot in range(first, first + robots_per_world):
            cos, sin = math.cos(poses[robot, 2]), math.sin(poses[robot, 2])
            limit = margin + 1.0
            if (
                _disc_clearance(body, x - poses[robot, 0], y - poses[robot, 1], radius, cos, sin, limit)
                < margin
            ):
                return False
        if static_clearance(geometry, w, point, x, y, 1.0, 0.0, margin + 0.1) < margin:
            return False
    movers[w, m, 0] += ux * length
    movers[w, m, 1] += uy * length
    return True


# --- noise ------------------------------------------------------------------------------------------------


@compiled
def hash_counters(a: int, b: int, c: int, d: int) -> np.uint64:
    """64 well mixed bits of four counters (splitmix64 finaliser after each)."""
    h: np.uint64 = np.uint64(0x9E3779B97F4A7C15)
    for v in (a, b, c, d):
        h = h ^ np.uint64(v)
        h = h + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return h


@compiled
def to_unit(bits: np.uint64) -> float:
    """A number in (0, 1) from 64 bits."""
    return (float(bits >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@compiled
def standard_normal(a: int, b: int, c: int, d: int) -> float:
    """A normal deviate that depends on four counters alone, whatever ran before it."""
    bits = hash_counters(a, b, c, d)
    u = to_unit(bits)
    v = to_unit(hash_counters(d, c, b, a) ^ bits)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


@compiled
def draw_normals(
    seed: int,
    keys: IntArray,
    episodes: IntArray,
    robots: IntArray,
    mean: DoubleArray,
    deviation: DoubleArray,
    out: DoubleArray,
) -> None:
    """Three new constants in ``(N, 3)`` ``out`` for some robots, normal about ``(3,)`` means."""
    for robot in robots:
        for axis in range(3):
            out[robot, axis] = mean[axis] + deviation[axis] * standard_normal(
                seed, keys[robot], episodes[robot], axis
            )


@compiled
def draw_shares(seed: int, keys: IntArray, episodes: IntArray, robots: IntArray, shares: DoubleArray) -> None:
    """A new number in (0, 1) for each of some robots."""
    for robot in robots:
        shares[robot] = to_unit(hash_counters(seed, keys[robot], episodes[robot], 0))


@compiled
def spoil_ranges(
    ranges: FloatArray,
    seed: int,
    keys: IntArray,
    ticks: IntArray,
    severity: DoubleArray,
    deviation: float,
    proportional: float,
    dropout: float,
    short: float,
    range_max: float,
    robots: IntArray,
    begin: int,
    end: int,
) -> None:
    """Noise, misses and short returns on the rows begin..end-1, of ``robots``; from counters alone."""
    for row in range(begin, end):
        robot = robots[row]
        share = severity[robot]
        for k in range(ranges.shape[1]):
            r = float(ranges[row, k])
            bits = hash_counters(seed + 1, keys[robot], ticks[robot], k)
            u = to_unit(bits)
            if u < share * dropout:
                ranges[row, k] = range_max
                continue
            if u < share * (dropout + short):
                ranges[row, k] = r * to_unit(hash_counters(seed + 2, keys[robot], ticks[robot], k))
                continue
            if r < range_max:
                noise = standard_normal(seed + 3, keys[robot], ticks[robot], k)
                r += share * noise * (deviation + proportional * r)
                ranges[row, k] = min(max(r, 0.0), range_max)
