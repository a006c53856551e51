# mypy: ignore-errors
"""The loops of `kernels` and `grid_kernels` in NVIDIA Warp, for CUDA; `device_simulator` launches them.

Everything in here is Warp's own language, which only looks like Python (so mypy is not asked): one
thread a beam, a robot or a world. What each function means stands at its namesake in `kernels`; what
differs is written here.

*Precision.* Poses, velocities and odometry are float64, which costs nothing for one number a robot.
Geometry is float32 relative to the middle of its world, because consumer GPUs do float64 at a
sixty-fourth of the speed: in a world of 30 m walls move by half a micrometre, and a beam that meets a
wall at a grazing angle errs by that over the sine of the angle.

*Ranges.* Each beam walks the tiles it crosses and asks their segments, instead of each segment asking
for the beams it covers: nothing is shared between threads, so there is nothing to lock. Ends are
`_THICK` wide to both sides, so that no beam slips through where two rounded ends meet.

*Turns.* Robots of a world move one after the other here too: one thread a world. What does not depend
on the others (how far each would go, and whether anything that stands still is near) is found before,
by a thread for each robot.
"""

from __future__ import annotations

import math

import warp as wp

OBSTACLE = wp.constant(wp.uint8(1))
VISIBLE = wp.constant(wp.uint8(2))

# Metres that a segment is longer at both ends than it is: more than float32 loses within 30 m.
_THICK = wp.constant(wp.float32(4e-6))
_FAR = wp.constant(wp.float32(1e30))
# A robot may not come nearer than this to anything, metres: more than the error of a clearance, so that
# none ever truly overlaps; what already is nearer may leave.
_TOUCH = wp.constant(wp.float64(1e-5))
_SLACK = wp.constant(wp.float64(1e-5))
_SHORTEST_ADVANCE = wp.constant(wp.float64(2e-3))
_STAND_OFF = wp.constant(wp.float64(1e-3))

_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))
_HALF = wp.constant(wp.float64(0.5))
_PI = wp.constant(wp.float64(math.pi))
_TURN = wp.constant(wp.float64(2.0 * math.pi))
_NO_TURN = wp.constant(wp.float64(1e-4))
_SIXTH = wp.constant(wp.float64(1.0 / 6.0))

_GOLDEN = wp.constant(wp.uint64(0x9E3779B97F4A7C15))
_MIX_1 = wp.constant(wp.uint64(0xBF58476D1CE4E5B9))
_MIX_2 = wp.constant(wp.uint64(0x94D049BB133111EB))
_UNIT = wp.constant(wp.float64(1.0 / 9007199254740992.0))

# Nothing here is differentiated; without this twice as much is compiled.
wp.set_module_options({"enable_backward": False})


@wp.struct
class Geometry:
    """`kernels.Geometry`, float32 and relative to ``centre``; ``frame`` is too."""

    centre: wp.array(dtype=wp.vec2d)
    frame: wp.array(dtype=wp.vec3)
    tiles: wp.array(dtype=wp.vec2i)
    segment_start: wp.array2d(dtype=wp.int32)
    circle_start: wp.array2d(dtype=wp.int32)
    segments: wp.array2d(dtype=wp.vec4)
    segment_flags: wp.array2d(dtype=wp.uint8)
    circles: wp.array2d(dtype=wp.vec3)
    circle_flags: wp.array2d(dtype=wp.uint8)
    movers: wp.array2d(dtype=wp.vec3)


@wp.struct
class Body:
    """`kernels.Body`."""

    polygon: wp.array(dtype=wp.vec2)
    radius: wp.float32
    outline: wp.array(dtype=wp.vec2)
    outline_radius: wp.float32
    visible: wp.bool
    solid: wp.bool


@wp.struct
class Base:
    """`kernels.Base`."""

    speed: wp.vec3d
    acceleration: wp.vec3d
    turning_radius: wp.float64


@wp.struct
class FreeCells:
    """The cells of each world where a robot may start.

    ``cells`` holds their indices, row by row; ``component`` the connected region of each.
    """

    count: wp.array(dtype=wp.int32)
    cells: wp.array2d(dtype=wp.int32)
    component: wp.array2d(dtype=wp.int32)
    columns: wp.array(dtype=wp.int32)
    origin: wp.array(dtype=wp.vec2d)
    resolution: wp.float64


# --- ranges -----------------------------------------------------------------------------------------------


@wp.func
def _cross(a: wp.vec2, b: wp.vec2) -> wp.float32:
    return a[0] * b[1] - a[1] * b[0]


@wp.func
def _turned(cos: wp.float32, sin: wp.float32, p: wp.vec2) -> wp.vec2:
    """A direction of the world as a body sees it whose heading has this cosine and sine."""
    return wp.vec2(cos * p[0] + sin * p[1], cos * p[1] - sin * p[0])


@wp.func
def _carried(origin: wp.vec2, cos: wp.float32, sin: wp.float32, p: wp.vec2) -> wp.vec2:
    """A point of a body that stands at ``origin`` with this heading."""
    return wp.vec2(origin[0] + cos * p[0] - sin * p[1], origin[1] + sin * p[0] + cos * p[1])


@wp.func
def _ray_segment(a: wp.vec2, b: wp.vec2, d: wp.vec2) -> wp.float32:
    """Range along the unit direction ``d`` to a segment whose ends are given from the sensor."""
    left = _cross(a, d)
    if left > _THICK:
        return _FAR
    right = _cross(b, d)
    if right < -_THICK:
        return _FAR
    facing = _cross(a, b - a)
    if facing >= 0.0:
        return _FAR
    along_a, along_b = wp.dot(a, d), wp.dot(b, d)
    nearer, farther = wp.min(along_a, along_b), wp.max(along_a, along_b)
    if nearer < 0.0 and left - right > -_THICK:
        return _FAR
    t = nearer
    # Seen end on, the quotient says nothing and its near end is what is met.
    if left - right < -1.0e-9:
        t = wp.clamp(facing / (left - right), nearer, farther)
    if t < 0.0:
        return _FAR
    return t


@wp.func
def _ray_circle(p: wp.vec2, radius: wp.float32, d: wp.vec2) -> wp.float32:
    """Range to a circle about ``p``; none from inside of it."""
    t = wp.dot(p, d)
    if t <= 0.0:
        return _FAR
    aside = _cross(p, d)
    under = radius * radius - aside * aside
    if under < 0.0:
        return _FAR
    k = wp.dot(p, p) - radius * radius
    if k <= 0.0:
        return _FAR
    return k / (t + wp.sqrt(under))


@wp.func
def _slab(o: wp.float32, d: wp.float32, low: wp.float32, high: wp.float32) -> wp.vec2:
    """Where a ray is between two borders: from, to."""
    if wp.abs(d) < 1.0e-12:
        if o < low or o > high:
            return wp.vec2(_FAR, -_FAR)
        return wp.vec2(-_FAR, _FAR)
    t0, t1 = (low - o) / d, (high - o) / d
    return wp.vec2(wp.min(t0, t1), wp.max(t0, t1))


@wp.func
def _ray_tile(
    g: Geometry, w: wp.int32, tile: wp.int32, o: wp.vec2, d: wp.vec2, best: wp.float32
) -> wp.float32:
    nearest = best
    for k in range(g.segment_start[w, tile], g.segment_start[w, tile + 1]):
        if (g.segment_flags[w, k] & VISIBLE) != wp.uint8(0):
            s = g.segments[w, k]
            a, b = wp.vec2(s[0] - o[0], s[1] - o[1]), wp.vec2(s[2] - o[0], s[3] - o[1])
            nearest = wp.min(nearest, _ray_segment(a, b, d))
    for k in range(g.circle_start[w, tile], g.circle_start[w, tile + 1]):
        if (g.circle_flags[w, k] & VISIBLE) != wp.uint8(0):
            c = g.circles[w, k]
            nearest = wp.min(nearest, _ray_circle(wp.vec2(c[0] - o[0], c[1] - o[1]), c[2], d))
    return nearest


@wp.func
def _ray_world(g: Geometry, w: wp.int32, o: wp.vec2, d: wp.vec2, best: wp.float32) -> wp.float32:
    """Range to what stands still, if nearer than ``best``: tile by tile (Amanatides and Woo, 1987)."""
    frame, tiles = g.frame[w], g.tiles[w]
    size = frame[2]
    in_x = _slab(o[0], d[0], frame[0], frame[0] + wp.float32(tiles[0]) * size)
    in_y = _slab(o[1], d[1], frame[1], frame[1] + wp.float32(tiles[1]) * size)
    enters = wp.max(wp.max(in_x[0], in_y[0]), 0.0)
    if enters > wp.min(in_x[1], in_y[1]) or enters > best:
        return best
    i = wp.clamp(wp.int32(wp.floor((o[0] + enters * d[0] - frame[0]) / size)), 0, tiles[0] - 1)
    j = wp.clamp(wp.int32(wp.floor((o[1] + enters * d[1] - frame[1]) / size)), 0, tiles[1] - 1)
    step_x = wp.where(d[0] >= 0.0, 1, -1)
    step_y = wp.where(d[1] >= 0.0, 1, -1)
    nearest = best
    for _ in range(tiles[0] + tiles[1]):
        nearest = _ray_tile(g, w, j * tiles[0] + i, o, d, nearest)
        leaves_x, leaves_y = _FAR, _FAR
        if wp.abs(d[0]) > 1.0e-12:
            leaves_x = (frame[0] + wp.float32(i + (step_x + 1) / 2) * size - o[0]) / d[0]
        if wp.abs(d[1]) > 1.0e-12:
            leaves_y = (frame[1] + wp.float32(j + (step_y + 1) / 2) * size - o[1]) / d[1]
        if nearest <= wp.min(leaves_x, leaves_y):
            return nearest
        if leaves_x < leaves_y:
            i += step_x
            if i < 0 or i >= tiles[0]:
                return nearest
        else:
            j += step_y
            if j < 0 or j >= tiles[1]:
                return nearest
    return nearest


@wp.func
def _ray_robots(
    body: Body,
    stances: wp.array(dtype=wp.vec4),
    first: wp.int32,
    last: wp.int32,
    own: wp.int32,
    o: wp.vec2,
    d: wp.vec2,
    best: wp.float32,
) -> wp.float32:
    """Range to the other robots of a world, if nearer than ``best``."""
    nearest = best
    corners = body.outline.shape[0]
    for other in range(first, last):
        if other != own:
            stance = stances[other]
            p = wp.vec2(stance[0] - o[0], stance[1] - o[1])
            if corners == 0:
                nearest = wp.min(nearest, _ray_circle(p, body.outline_radius, d))
            elif wp.abs(_cross(p, d)) <= body.outline_radius + _THICK:
                for k in range(corners):
                    a = _carried(p, stance[2], stance[3], body.outline[(k + corners - 1) % corners])
                    b = _carried(p, stance[2], stance[3], body.outline[k])
                    nearest = wp.min(nearest, _ray_segment(a, b, d))
    return nearest


@wp.kernel
def stand(
    g: Geometry,
    poses: wp.array(dtype=wp.vec3d),
    mounts: wp.array(dtype=wp.vec3d),
    robots_per_world: wp.int32,
    stances: wp.array(dtype=wp.vec4),
    sensors: wp.array(dtype=wp.vec4),
):
    """Where robots and their lidars are, from the middle of the world: x, y, cosine and sine of direction."""
    robot = wp.tid()
    pose, mount = poses[robot], mounts[robot]
    centre = g.centre[robot / robots_per_world]
    c, s = wp.cos(pose[2]), wp.sin(pose[2])
    x, y = pose[0] - centre[0], pose[1] - centre[1]
    direction = pose[2] + mount[2]
    stances[robot] = wp.vec4(wp.float32(x), wp.float32(y), wp.float32(c), wp.float32(s))
    sensors[robot] = wp.vec4(
        wp.float32(x + c * mount[0] - s * mount[1]),
        wp.float32(y + s * mount[0] + c * mount[1]),
        wp.float32(wp.cos(direction)),
        wp.float32(wp.sin(direction)),
    )


@wp.kernel
def scan(
    g: Geometry,
    body: Body,
    directions: wp.array(dtype=wp.vec2),
    range_max: wp.float32,
    robots_per_world: wp.int32,
    stances: wp.array(dtype=wp.vec4),
    sensors: wp.array(dtype=wp.vec4),
    only: wp.array(dtype=wp.bool),
    first_beam: wp.int32,
    ranges: wp.array2d(dtype=wp.float32),
):
    """One beam of one robot of ``only``; the ranges of others stay what they are."""
    robot, beam = wp.tid()
    if not only[robot]:
        return
    k = first_beam + beam
    w = robot / robots_per_world
    sensor = sensors[robot]
    own = directions[k]
    o = wp.vec2(sensor[0], sensor[1])
    d = wp.vec2(sensor[2] * own[0] - sensor[3] * own[1], sensor[3] * own[0] + sensor[2] * own[1])
    nearest = range_max
    if body.visible:
        first = w * robots_per_world
        nearest = _ray_robots(body, stances, first, first + robots_per_world, robot, o, d, nearest)
    for m in range(g.movers.shape[1]):
        disc = g.movers[w, m]
        if disc[2] > 0.0:
            nearest = wp.min(nearest, _ray_circle(wp.vec2(disc[0] - o[0], disc[1] - o[1]), disc[2], d))
    ranges[robot, k] = _ray_world(g, w, o, d, nearest)


# --- distances --------------------------------------------------------------------------------------------


@wp.func
def _point_segment2(p: wp.vec2, a: wp.vec2, b: wp.vec2) -> wp.float32:
    e, f = b - a, p - a
    t = wp.clamp(wp.dot(f, e) / wp.dot(e, e), 0.0, 1.0)
    gap = f - t * e
    return wp.dot(gap, gap)


@wp.func
def _polygon_segment(polygon: wp.array(dtype=wp.vec2), a: wp.vec2, b: wp.vec2) -> wp.float32:
    n = polygon.shape[0]
    t0, t1 = wp.float32(0.0), wp.float32(1.0)
    best = wp.float32(_FAR)
    apart = wp.bool(False)
    e = b - a
    for k in range(n):
        p, q = polygon[(k + n - 1) % n], polygon[k]
        u = q - p
        from_a = _cross(u, a - p)
        along = _cross(u, e)
        if along == 0.0:
            if from_a < 0.0:
                apart = True
        elif along > 0.0:
            t0 = wp.max(t0, -from_a / along)
        else:
            t1 = wp.min(t1, -from_a / along)
        best = wp.min(best, _point_segment2(q, a, b))
        best = wp.min(best, _point_segment2(a, p, q))
        best = wp.min(best, _point_segment2(b, p, q))
    if not apart and t0 <= t1:
        return 0.0
    return wp.sqrt(best)


@wp.func
def _polygon_point(polygon: wp.array(dtype=wp.vec2), point: wp.vec2) -> wp.float32:
    n = polygon.shape[0]
    best = wp.float32(_FAR)
    inside = wp.bool(True)
    for k in range(n):
        p, q = polygon[(k + n - 1) % n], polygon[k]
        if _cross(q - p, point - p) < 0.0:
            inside = False
        best = wp.min(best, _point_segment2(point, p, q))
    if inside:
        return 0.0
    return wp.sqrt(best)


@wp.func
def _disc_clearance(
    body: Body, p: wp.vec2, radius: wp.float32, cos: wp.float32, sin: wp.float32, limit: wp.float32
) -> wp.float32:
    reach = limit + body.radius + radius
    d2 = wp.dot(p, p)
    if reach < 0.0 or d2 >= reach * reach:
        return limit
    if body.polygon.shape[0] == 0:
        return wp.sqrt(d2) - body.radius - radius
    return _polygon_point(body.polygon, _turned(cos, sin, p)) - radius


@wp.func
def _tile_clearance(
    g: Geometry,
    w: wp.int32,
    tile: wp.int32,
    body: Body,
    x: wp.float32,
    y: wp.float32,
    cos: wp.float32,
    sin: wp.float32,
    limit: wp.float32,
) -> wp.float32:
    best = limit
    for k in range(g.segment_start[w, tile], g.segment_start[w, tile + 1]):
        if (g.segment_flags[w, k] & OBSTACLE) != wp.uint8(0):
            s = g.segments[w, k]
            a, b = wp.vec2(s[0] - x, s[1] - y), wp.vec2(s[2] - x, s[3] - y)
            reach = best + body.radius
            d2 = _point_segment2(wp.vec2(0.0, 0.0), a, b)
            if d2 < reach * reach:
                if body.polygon.shape[0] > 0:
                    best = wp.min(
                        best, _polygon_segment(body.polygon, _turned(cos, sin, a), _turned(cos, sin, b))
                    )
                else:
                    best = wp.min(best, wp.sqrt(d2) - body.radius)
    for k in range(g.circle_start[w, tile], g.circle_start[w, tile + 1]):
        if (g.circle_flags[w, k] & OBSTACLE) != wp.uint8(0):
            c = g.circles[w, k]
            best = wp.min(best, _disc_clearance(body, wp.vec2(c[0] - x, c[1] - y), c[2], cos, sin, best))
    return best


@wp.func
def _static_clearance(
    g: Geometry,
    w: wp.int32,
    body: Body,
    x: wp.float32,
    y: wp.float32,
    cos: wp.float32,
    sin: wp.float32,
    limit: wp.float32,
) -> wp.float32:
    """Distance of a footprint at a pose from the world's middle to what stands still, at most ``limit``."""
    frame, tiles = g.frame[w], g.tiles[w]
    size = frame[2]
    nx, ny = tiles[0], tiles[1]
    i0 = wp.clamp(wp.int32(wp.floor((x - frame[0]) / size)), 0, nx - 1)
    j0 = wp.clamp(wp.int32(wp.floor((y - frame[1]) / size)), 0, ny - 1)
    tile_x, tile_y = frame[0] + wp.float32(i0) * size, frame[1] + wp.float32(j0) * size
    border = wp.min(
        wp.min(wp.max(x - tile_x, 0.0), wp.max(tile_x + size - x, 0.0)),
        wp.min(wp.max(y - tile_y, 0.0), wp.max(tile_y + size - y, 0.0)),
    )
    rings = wp.max(wp.max(i0, nx - 1 - i0), wp.max(j0, ny - 1 - j0))
    best = limit
    for ring in range(rings + 1):
        if ring > 0 and wp.float32(ring - 1) * size + border - body.radius >= best:
            return best
        for j in range(wp.max(j0 - ring, 0), wp.min(j0 + ring, ny - 1) + 1):
            stride = 2 * ring
            if j == j0 - ring or j == j0 + ring or ring == 0:
                stride = 1
            i = i0 - ring
            while i <= i0 + ring:
                if i >= 0 and i < nx:
                    best = _tile_clearance(g, w, j * nx + i, body, x, y, cos, sin, best)
                i += stride
    return best


@wp.func
def _standing_clearance(
    g: Geometry,
    w: wp.int32,
    body: Body,
    x: wp.float64,
    y: wp.float64,
    yaw: wp.float64,
    limit: wp.float32,
) -> wp.float32:
    """Distance of a footprint at a pose to everything but other robots, at most ``limit``."""
    centre = g.centre[w]
    px, py = wp.float32(x - centre[0]), wp.float32(y - centre[1])
    cos, sin = wp.float32(1.0), wp.float32(0.0)
    if body.polygon.shape[0] > 0:
        cos, sin = wp.float32(wp.cos(yaw)), wp.float32(wp.sin(yaw))
    best = limit
    for m in range(g.movers.shape[1]):
        disc = g.movers[w, m]
        if disc[2] > 0.0:
            best = wp.min(
                best, _disc_clearance(body, wp.vec2(disc[0] - px, disc[1] - py), disc[2], cos, sin, best)
            )
    return _static_clearance(g, w, body, px, py, cos, sin, best)


@wp.func
def _robot_clearance(
    body: Body,
    poses: wp.array(dtype=wp.vec3d),
    first: wp.int32,
    last: wp.int32,
    own: wp.int32,
    x: wp.float64,
    y: wp.float64,
    yaw: wp.float64,
    limit: wp.float32,
) -> wp.float32:
    best = limit
    corners = body.polygon.shape[0]
    for other in range(first, last):
        if other != own:
            pose = poses[other]
            # The difference in float64, so that it has all its digits.
            p = wp.vec2(wp.float32(pose[0] - x), wp.float32(pose[1] - y))
            reach = best + 2.0 * body.radius
            d2 = wp.dot(p, p)
            if reach >= 0.0 and d2 < reach * reach:
                if corners == 0:
                    best = wp.sqrt(d2) - 2.0 * body.radius
                else:
                    own_c, own_s = wp.float32(wp.cos(yaw)), wp.float32(wp.sin(yaw))
                    c, s = wp.float32(wp.cos(pose[2] - yaw)), wp.float32(wp.sin(pose[2] - yaw))
                    seen = _turned(own_c, own_s, p)
                    for k in range(corners):
                        a = _carried(seen, c, s, body.polygon[(k + corners - 1) % corners])
                        b = _carried(seen, c, s, body.polygon[k])
                        best = wp.min(best, _polygon_segment(body.polygon, a, b))
    return best


@wp.kernel
def clearances(
    g: Geometry,
    body: Body,
    poses: wp.array(dtype=wp.vec3d),
    robots_per_world: wp.int32,
    out: wp.array(dtype=wp.float64),
):
    robot = wp.tid()
    w = robot / robots_per_world
    pose = poses[robot]
    best = wp.float32(wp.inf)
    if body.solid:
        first = w * robots_per_world
        best = _robot_clearance(
            body, poses, first, first + robots_per_world, robot, pose[0], pose[1], pose[2], best
        )
    out[robot] = wp.float64(_standing_clearance(g, w, body, pose[0], pose[1], pose[2], best))


# --- motion -----------------------------------------------------------------------------------------------


@wp.func
def _ramp(now: wp.float64, target: wp.float64, acceleration: wp.float64, duration: wp.float64) -> wp.vec2d:
    change = target - now
    reach = acceleration * duration
    if wp.abs(change) <= reach:
        ramp = wp.abs(change) / acceleration
        return wp.vec2d(target, target - _HALF * change * ramp / duration)
    step = wp.where(change < _ZERO, -reach, reach)
    return wp.vec2d(now + step, now + _HALF * step)


@wp.func
def _steerable(wz: wp.float64, vx: wp.float64, turning_radius: wp.float64) -> wp.float64:
    bound = wp.abs(vx) / turning_radius
    return wp.clamp(wz, -bound, bound)


@wp.func
def _moved(pose: wp.vec3d, motion: wp.vec3d) -> wp.vec3d:
    c, s = wp.cos(pose[2]), wp.sin(pose[2])
    dx, dy, turn = motion[0], motion[1], motion[2]
    if turn != _ZERO:
        a, b = _ONE - turn * turn * _SIXTH, _HALF * turn
        if wp.abs(turn) >= _NO_TURN:
            a, b = wp.sin(turn) / turn, (_ONE - wp.cos(turn)) / turn
        dx, dy = a * dx - b * dy, b * dx + a * dy
    heading = pose[2] + turn
    if heading >= _PI:
        heading -= _TURN
    elif heading < -_PI:
        heading += _TURN
    return wp.vec3d(pose[0] + c * dx - s * dy, pose[1] + s * dx + c * dy, heading)


@wp.func
def _path_length(body: Body, motion: wp.vec3d) -> wp.float64:
    """The most that any point of the footprint moves."""
    length = wp.sqrt(motion[0] * motion[0] + motion[1] * motion[1])
    if body.polygon.shape[0] > 0:
        length += wp.abs(motion[2]) * wp.float64(body.radius)
    return length


@wp.kernel
def intend(
    g: Geometry,
    body: Body,
    base: Base,
    poses: wp.array(dtype=wp.vec3d),
    twists: wp.array(dtype=wp.vec3d),
    targets: wp.array(dtype=wp.vec3d),
    duration: wp.float64,
    robots_per_world: wp.int32,
    motions: wp.array(dtype=wp.vec3d),
    reached: wp.array(dtype=wp.vec3d),
    near: wp.array(dtype=wp.float64),
):
    """How each robot would move, how fast it would be then, and what that stands still is within its way."""
    robot = wp.tid()
    now, target = twists[robot], targets[robot]
    x = _ramp(now[0], wp.clamp(target[0], -base.speed[0], base.speed[0]), base.acceleration[0], duration)
    y = _ramp(now[1], wp.clamp(target[1], -base.speed[1], base.speed[1]), base.acceleration[1], duration)
    turn = _ramp(now[2], wp.clamp(target[2], -base.speed[2], base.speed[2]), base.acceleration[2], duration)
    wz, mean = turn[0], turn[1]
    if base.turning_radius > _ZERO:
        wz = _steerable(wz, x[0], base.turning_radius)
        mean = _steerable(mean, x[1], base.turning_radius)
    motion = wp.vec3d(x[1] * duration, y[1] * duration, mean * duration)
    motions[robot] = motion
    reached[robot] = wp.vec3d(x[0], y[0], wz)
    pose = poses[robot]
    limit = wp.float32(_path_length(body, motion) + _SLACK + _SLACK)
    near[robot] = wp.float64(
        _standing_clearance(g, robot / robots_per_world, body, pose[0], pose[1], pose[2], limit)
    )


@wp.func
def _clearance(
    g: Geometry,
    w: wp.int32,
    body: Body,
    poses: wp.array(dtype=wp.vec3d),
    first: wp.int32,
    last: wp.int32,
    own: wp.int32,
    pose: wp.vec3d,
    standing: wp.float64,
    limit: wp.float64,
) -> wp.float64:
    """Distance to everything, at most ``limit``; nothing that stands still is nearer than ``standing``."""
    best = wp.float32(limit)
    if body.solid:
        best = _robot_clearance(body, poses, first, last, own, pose[0], pose[1], pose[2], best)
    if standing < wp.float64(best) - wp.float64(1.0e-6):
        best = _standing_clearance(g, w, body, pose[0], pose[1], pose[2], best)
    return wp.float64(best)


@wp.func
def _sweep(
    g: Geometry,
    w: wp.int32,
    body: Body,
    poses: wp.array(dtype=wp.vec3d),
    first: wp.int32,
    last: wp.int32,
    robot: wp.int32,
    motion: wp.vec3d,
    near: wp.float64,
) -> wp.bool:
    """`kernels._sweep`; ``near`` is how near anything that stands still is before the way."""
    begin = poses[robot]
    length = _path_length(body, motion)
    if length == _ZERO:
        poses[robot] = _moved(begin, motion)
        return False
    done = wp.float64(0.0)
    while True:
        to = _moved(begin, done * motion)
        limit = wp.max((_ONE - done) * length, _ZERO) + _SLACK + _SLACK
        # At the beginning that is known already, and need not be found again.
        standing = wp.where(done == _ZERO, limit, near - done * length)
        d = _clearance(g, w, body, poses, first, last, robot, to, standing, limit)
        if done == _ZERO:
            d = wp.min(d, near)
            if d <= _ZERO:
                return True
        else:
            if d <= _TOUCH:
                return True
            poses[robot] = to
        if d > (_ONE - done) * length + _SLACK:
            poses[robot] = _moved(begin, motion)
            return False
        if done >= _ONE:
            return False
        done = wp.min(_ONE, done + wp.max(d - _STAND_OFF, _SHORTEST_ADVANCE) / length)
    return False


@wp.func
def _wrapped(angle: wp.float64) -> wp.float64:
    turned = angle + _PI
    return turned - _TURN * wp.floor(turned / _TURN) - _PI


@wp.func
def _reported(odometry: wp.vec3d, drift: wp.vec3d, before: wp.vec3d, after: wp.vec3d) -> wp.vec3d:
    c, s = wp.cos(before[2]), wp.sin(before[2])
    gx, gy = after[0] - before[0], after[1] - before[1]
    dx, dy = (c * gx + s * gy) * drift[0], (c * gy - s * gx) * drift[1]
    turn = _wrapped(after[2] - before[2]) * drift[2]
    c, s = wp.cos(odometry[2]), wp.sin(odometry[2])
    return wp.vec3d(
        odometry[0] + c * dx - s * dy, odometry[1] + s * dx + c * dy, _wrapped(odometry[2] + turn)
    )


@wp.kernel
def move(
    g: Geometry,
    body: Body,
    poses: wp.array(dtype=wp.vec3d),
    twists: wp.array(dtype=wp.vec3d),
    odometry: wp.array(dtype=wp.vec3d),
    drift: wp.array(dtype=wp.vec3d),
    motions: wp.array(dtype=wp.vec3d),
    reached: wp.array(dtype=wp.vec3d),
    near: wp.array(dtype=wp.float64),
    robots_per_world: wp.int32,
    contacts: wp.array(dtype=wp.bool),
):
    """Move the robots of one world in turn, as they intend."""
    w = wp.tid()
    first = w * robots_per_world
    for robot in range(first, first + robots_per_world):
        if not contacts[robot]:
            before = poses[robot]
            met = _sweep(
                g,
                w,
                body,
                poses,
                first,
                first + robots_per_world,
                robot,
                motions[robot],
                near[robot],
            )
            twists[robot] = reached[robot]
            if met:
                contacts[robot] = True
                twists[robot] = wp.vec3d(_ZERO, _ZERO, _ZERO)
            odometry[robot] = _reported(odometry[robot], drift[robot], before, poses[robot])


# --- noise ------------------------------------------------------------------------------------------------


@wp.func
def _mixed(h: wp.uint64, v: wp.int64) -> wp.uint64:
    m = (h ^ wp.uint64(v)) + _GOLDEN
    m = (m ^ (m >> wp.uint64(30))) * _MIX_1
    m = (m ^ (m >> wp.uint64(27))) * _MIX_2
    return m ^ (m >> wp.uint64(31))


@wp.func
def _hash(a: wp.int64, b: wp.int64, c: wp.int64, d: wp.int64) -> wp.uint64:
    """The very bits of `kernels.hash_counters`."""
    return _mixed(_mixed(_mixed(_mixed(_GOLDEN, a), b), c), d)


@wp.func
def _unit(bits: wp.uint64) -> wp.float64:
    return (wp.float64(bits >> wp.uint64(11)) + _HALF) * _UNIT


@wp.func
def _normal(a: wp.int64, b: wp.int64, c: wp.int64, d: wp.int64) -> wp.float32:
    """`kernels.standard_normal` to float32, from the same bits."""
    bits = _hash(a, b, c, d)
    u = wp.float32(_unit(bits))
    v = wp.float32(_unit(_hash(d, c, b, a) ^ bits))
    return wp.sqrt(-2.0 * wp.log(u)) * wp.cos(2.0 * wp.pi * v)


@wp.kernel
def draw_normals(
    seed: wp.int64,
    keys: wp.array(dtype=wp.int64),
    episodes: wp.array(dtype=wp.int64),
    which: wp.array(dtype=wp.bool),
    mean: wp.vec3d,
    deviation: wp.vec3d,
    out: wp.array(dtype=wp.vec3d),
):
    robot = wp.tid()
    if which[robot]:
        key, episode = keys[robot], episodes[robot]
        noise = wp.vec3d(
            wp.float64(_normal(seed, key, episode, wp.int64(0))),
            wp.float64(_normal(seed, key, episode, wp.int64(1))),
            wp.float64(_normal(seed, key, episode, wp.int64(2))),
        )
        out[robot] = mean + wp.cw_mul(deviation, noise)


@wp.kernel
def draw_shares(
    seed: wp.int64,
    keys: wp.array(dtype=wp.int64),
    episodes: wp.array(dtype=wp.int64),
    which: wp.array(dtype=wp.bool),
    shares: wp.array(dtype=wp.float64),
):
    robot = wp.tid()
    if which[robot]:
        shares[robot] = _unit(_hash(seed, keys[robot], episodes[robot], wp.int64(0)))


@wp.kernel
def spoil(
    ranges: wp.array2d(dtype=wp.float32),
    seed: wp.int64,
    keys: wp.array(dtype=wp.int64),
    ticks: wp.array(dtype=wp.int64),
    severity: wp.array(dtype=wp.float64),
    deviation: wp.float32,
    proportional: wp.float32,
    dropout: wp.float64,
    shorts: wp.float64,
    range_max: wp.float32,
    only: wp.array(dtype=wp.bool),
):
    """Noise, misses and short returns on one beam."""
    robot, k = wp.tid()
    if not only[robot]:
        return
    key, tick, beam = keys[robot], ticks[robot], wp.int64(k)
    share = severity[robot]
    u = _unit(_hash(seed + wp.int64(1), key, tick, beam))
    r = ranges[robot, k]
    if u < share * dropout:
        ranges[robot, k] = range_max
    elif u < share * (dropout + shorts):
        ranges[robot, k] = r * wp.float32(_unit(_hash(seed + wp.int64(2), key, tick, beam)))
    elif r < range_max:
        noise = _normal(seed + wp.int64(3), key, tick, beam)
        r += wp.float32(share) * noise * (deviation + proportional * r)
        ranges[robot, k] = wp.clamp(r, 0.0, range_max)


# --- starts and goals -------------------------------------------------------------------------------------


@wp.func
def _draw(
    free: FreeCells, w: wp.int32, k: wp.int32, seed: wp.int64, key: wp.int64, episode: wp.int64, at: wp.int64
) -> wp.vec3d:
    """A pose somewhere in the world's k-th free cell."""
    cell = free.cells[w, k]
    columns = free.columns[w]
    origin = free.origin[w]
    column, row = wp.float64(cell % columns), wp.float64(cell / columns)
    u = _unit(_hash(seed, key, episode, at + wp.int64(1)))
    v = _unit(_hash(seed, key, episode, at + wp.int64(2)))
    yaw = _unit(_hash(seed, key, episode, at + wp.int64(3)))
    return wp.vec3d(
        origin[0] + (column + u) * free.resolution,
        origin[1] + (row + v) * free.resolution,
        (yaw + yaw - _ONE) * _PI,
    )


@wp.func
def _pick(
    free: FreeCells, w: wp.int32, seed: wp.int64, key: wp.int64, episode: wp.int64, at: wp.int64
) -> wp.int32:
    count = free.count[w]
    return wp.min(wp.int32(_unit(_hash(seed, key, episode, at)) * wp.float64(count)), count - 1)


@wp.func
def _distance2(a: wp.vec3d, b: wp.vec3d) -> wp.float64:
    return (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1])


@wp.func
def _apart(
    pose: wp.vec3d,
    own: wp.int32,
    first: wp.int32,
    last: wp.int32,
    ended: wp.array(dtype=wp.bool),
    placed: wp.array(dtype=wp.vec3d),
    staying: wp.array(dtype=wp.vec3d),
    apart: wp.float64,
) -> wp.bool:
    """Whether a pose keeps apart from the robots under way and from those that were given a place before."""
    for other in range(first, last):
        if ended[other]:
            if other < own and _distance2(pose, placed[other]) < apart * apart:
                return False
        elif _distance2(pose, staying[other]) < apart * apart:
            return False
    return True


@wp.func
def _clear_of_movers(g: Geometry, w: wp.int32, pose: wp.vec3d, apart: wp.float64) -> wp.bool:
    centre = g.centre[w]
    for m in range(g.movers.shape[1]):
        disc = g.movers[w, m]
        if disc[2] > 0.0:
            at = wp.vec3d(wp.float64(disc[0]) + centre[0], wp.float64(disc[1]) + centre[1], _ZERO)
            if _distance2(pose, at) < apart * apart:
                return False
    return True


@wp.func
def _fits(g: Geometry, w: wp.int32, body: Body, pose: wp.vec3d) -> wp.bool:
    centre = g.centre[w]
    x, y = wp.float32(pose[0] - centre[0]), wp.float32(pose[1] - centre[1])
    cos, sin = wp.float32(wp.cos(pose[2])), wp.float32(wp.sin(pose[2]))
    return _static_clearance(g, w, body, x, y, cos, sin, 0.03) >= 0.03


@wp.kernel
def place(
    g: Geometry,
    body: Body,
    free: FreeCells,
    seed: wp.int64,
    keys: wp.array(dtype=wp.int64),
    episodes: wp.array(dtype=wp.int64),
    poses: wp.array(dtype=wp.vec3d),
    ended: wp.array(dtype=wp.bool),
    robots_per_world: wp.int32,
    spacing: wp.float64,
    min_distance: wp.float64,
    max_distance: wp.float64,
    tries: wp.int32,
    starts: wp.array(dtype=wp.vec3d),
    goals: wp.array(dtype=wp.vec3d),
    failures: wp.array(dtype=wp.int32),
):
    """Starts and goals for the ``ended`` robots of one world, in turn, by `grid_kernels.sample_pair`'s rules.

    First with ``spacing`` between footprints; then, where there is no room for that, with none. A robot
    for which there is no room at all keeps its old ones, and is counted.
    """
    w = wp.tid()
    first = w * robots_per_world
    last = first + robots_per_world
    for robot in range(first, last):
        if ended[robot]:
            key, episode = keys[robot], episodes[robot]
            found = wp.bool(False)
            start = wp.vec3d()
            region = wp.int32(0)
            fits = wp.bool(False)
            for t in range(18 * tries):
                # A start, and if it is one, eight goals for it.
                if not found and free.count[w] > 0 and (t % 9 == 0 or fits):
                    apart = wp.float64(2.0 * body.radius)
                    if t < 9 * tries:
                        apart += spacing
                    at = wp.int64(4 * t)
                    k = _pick(free, w, seed, key, episode, at)
                    pose = _draw(free, w, k, seed, key, episode, at)
                    good = wp.bool(False)
                    if t % 9 == 0:
                        good = _apart(pose, robot, first, last, ended, starts, poses, apart)
                        good = good and _clear_of_movers(g, w, pose, apart)
                    else:
                        distance2 = _distance2(start, pose)
                        good = (
                            free.component[w, k] == region
                            and distance2 >= min_distance * min_distance
                            and distance2 <= max_distance * max_distance
                        )
                        good = good and _apart(pose, robot, first, last, ended, goals, goals, apart)
                    good = good and _fits(g, w, body, pose)
                    if t % 9 == 0:
                        fits = good
                        start = pose
                        region = free.component[w, k]
                    elif good:
                        starts[robot] = start
                        goals[robot] = pose
                        found = True
            if not found:
                wp.atomic_add(failures, 0, 1)
