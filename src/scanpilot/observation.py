"""From any lidar and any goal to what the network sees; the only place where that is decided.

Simulation, bags and the robot use the same objects from here, so they cannot drift apart.
How ranges, goals and speeds are scaled for the network is `ENCODING_VERSION`'s business and
travels in the policy's manifest.

What a range reading means (one rule, applied everywhere):

* a finite reading above `ERROR_CODE_LIMIT` and below the scan's ``range_max`` is an obstacle
  at that distance, also when it is below the scan's ``range_min``;
* ``-inf`` is an obstacle too close to measure (REP-117), taken at the scan's ``range_min``;
* everything else is "no return": ``nan``, ``+inf``, readings at or beyond ``range_max``, zero,
  negative readings and the few-millimetre codes that drivers send for failed measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanpilot.geometry import relative_poses
from scanpilot.guidance import FEATURES as GUIDANCE_FEATURES
from scanpilot.guidance import GuidanceSpec, Guide
from scanpilot.robot import RobotSpec
from scanpilot.types import ORIGIN, DoubleArray, FloatArray, InvalidInput, LaserScan, Pose2D, Triplet, Twist2D

ENCODING_VERSION = 1

# Lidars report failed measurements as 0 or as codes of 1 to 20 mm; none measures that close.
ERROR_CODE_LIMIT = 0.02

_FULL_TURN = 2.0 * math.pi - 1e-6
# Beams often stand exactly on the border of two sectors. Headers are float32 and mounts are written
# with a few digits: a beam this fraction of a sector below a border still counts as on it.
_BORDER = 1e-3

GOAL_FEATURES = 6
SPEED_FEATURES = 3
STATE_FEATURES = GOAL_FEATURES + SPEED_FEATURES
# Nearer than this no range means anything, metres.
_NEAREST = 0.05
# Beyond this the policy is told the goal's direction only: a local navigator has no use for more.
_FAR = 10.0
# Metres of excess that the policy is told well apart.
_EXCESS = 3.0


@dataclass(frozen=True)
class ObservationSpec:
    """What one policy sees.

    Attributes:
        beams: n, number of sectors that the field of view is cut into; each holds the
            nearest obstacle in it.
        angle_min, angle_max: field of view in ``base_link``, radians, counter-clockwise.
        range_min, range_max: metres; scans are clipped to them, no return = ``range_max``.
        frames: k, scans stacked, one per control period.
        speed_scale: m/s, m/s and rad/s that the network sees as 1.
        encoding_version: how values are scaled for the network.
        guidance: the network also gets which way round what was seen suggests; None leaves it out.
    """

    beams: int = 180
    angle_min: float = -math.pi
    angle_max: float = math.pi
    range_min: float = 0.2
    range_max: float = 20.0
    frames: int = 3
    speed_scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    encoding_version: int = ENCODING_VERSION
    guidance: GuidanceSpec | None = None

    def __post_init__(self) -> None:
        if self.beams < 1 or self.frames < 1:
            raise ValueError(
                f"observation has {self.beams} beams and {self.frames} frames, expected at least 1"
            )
        if not 0.0 < self.angle_max - self.angle_min <= 2.0 * math.pi + 1e-6:
            raise ValueError(
                f"field of view {self.angle_min}..{self.angle_max} rad, expected at most one turn"
            )
        if not 0.0 < self.range_min < self.range_max < math.inf:
            raise ValueError(f"range {self.range_min}..{self.range_max} m, expected 0 < min < max")
        if not all(0.0 < s < math.inf for s in self.speed_scale):
            raise ValueError(f"speed_scale {self.speed_scale}, expected positive numbers")
        if self.encoding_version != ENCODING_VERSION:
            raise ValueError(
                f"observation encoding version {self.encoding_version}, this release knows {ENCODING_VERSION}"
            )

    @property
    def sector(self) -> float:
        """Width of one beam's sector, radians."""
        return (self.angle_max - self.angle_min) / self.beams

    @property
    def angles(self) -> DoubleArray:
        """(n,) direction of each sector's middle in ``base_link``, radians."""
        middles: DoubleArray = np.arange(self.beams, dtype=np.float64) + 0.5
        return self.angle_min + self.sector * middles

    @property
    def scan_shape(self) -> tuple[int, int]:
        """(k, n) of a triplet's scan."""
        return self.frames, self.beams

    @property
    def state_features(self) -> int:
        """Width of `encode_state`."""
        return STATE_FEATURES + (GUIDANCE_FEATURES if self.guidance else 0)


def observation_for(
    robot: RobotSpec,
    beams: int = 180,
    frames: int = 3,
    range_min: float = 0.2,
    range_max: float = 20.0,
    guidance: bool = False,
) -> ObservationSpec:
    """The observation that suits a robot: its lidar's field of view, its limits as speed scale.

    ``range_min`` is lowered to where a small robot's outline comes closer to base_link: what is about
    to touch it must not look as far away as what it passes. Codes of failed measurements stay out.
    ``guidance`` is for passages that the robot fits through lengthwise, with some air.
    """
    lidar = robot.lidar
    range_min = min(range_min, max(robot.footprint.inscribed_radius, _NEAREST))
    if lidar.angle_max - lidar.angle_min >= _FULL_TURN:
        low, high = -math.pi, math.pi
    else:
        # Half a beam on either side: an edge beam stands in the middle of its sector.
        half = 0.5 * lidar.angle_increment
        low, high = lidar.angle_min + lidar.yaw - half, lidar.angle_max + lidar.yaw + half
        if high - low >= _FULL_TURN:
            low, high = -math.pi, math.pi
    scale = (robot.limits.vx, robot.limits.vy or 1.0, robot.limits.wz)
    width = robot.footprint.inscribed_radius
    cell = 0.65 * (width + 0.03)
    way = GuidanceSpec(width + 0.03, width + 0.2, cell, half_width=33 * cell) if guidance else None
    return ObservationSpec(beams, low, high, range_min, range_max, frames, scale, guidance=way)


def guide_for(spec: ObservationSpec, num_robots: int = 1, threads: int = 1) -> Guide | None:
    """What remembers and guides N robots that see by this spec; None where it asks for none."""
    if spec.guidance is None:
        return None
    scan = (spec.angle_min, spec.sector, spec.beams, spec.range_max)
    return Guide(spec.guidance, *scan, num_robots, threads)


def with_guidance(triplet: Triplet, spec: ObservationSpec, poses: DoubleArray | None = None) -> Triplet:
    """The triplets with guidance, unless they have it or the policy wants none.

    Args:
        triplet: of one robot or of many.
        spec: what the policy sees.
        poses: ``(N, 3)`` in odometry's frame, if the triplets are one robot's in the order of time: each then
            knows what those before it saw. Else each knows its own newest scan alone.
    """
    if spec.guidance is None or triplet.guidance is not None:
        return triplet
    batch, guide = triplet.batched(), guide_for(spec)
    assert guide is not None
    found: FloatArray = np.empty((len(batch), GUIDANCE_FEATURES), dtype=np.float32)
    for k in range(len(batch)):
        row = slice(k, k + 1)
        if poses is None:
            guide.forget()
        found[k] = guide(
            batch.scan[row, -1], batch.goal[row], np.zeros((1, 3)) if poses is None else poses[row]
        )
    return replace(triplet, guidance=found if triplet.scan.ndim == 3 else found[0])


class ScanResampler:
    """Brings scans of one geometry and mount to a policy's beams; see the module for the rule.

    Each beam speaks for the sector its direction falls in. Where beams are sparser than
    sectors, each speaks for all sectors within half an increment, so that no sector within
    the lidar's field of view is left empty. Sectors outside of it hold ``range_max``.

    Args:
        spec: the policy's observation.
        angle_min, angle_increment, beams: the scan's header, radians.
        range_min, range_max: the scan's header, metres.
        mount: pose of the lidar in ``base_link``.
        flipped: the lidar hangs upside down, so that its angles run clockwise seen from above.
    """

    def __init__(
        self,
        spec: ObservationSpec,
        angle_min: float,
        angle_increment: float,
        beams: int,
        range_min: float,
        range_max: float,
        mount: Pose2D = ORIGIN,
        flipped: bool = False,
    ) -> None:
        self.spec = spec
        self.beams = beams
        self._scan_min, self._scan_max = range_min, range_max
        sign = -1.0 if flipped else 1.0
        directions = mount.yaw + sign * (angle_min + angle_increment * np.arange(beams, dtype=np.float64))
        self._directions = directions
        self._cos, self._sin = np.cos(directions), np.sin(directions)
        self._mount = mount
        self._centred = mount.x == 0.0 and mount.y == 0.0
        # Sectors to either side of its own that a sparse beam speaks for as well.
        # Seen from base_link, an offset lidar's beams may stand twice as far apart on what is near.
        spacing = abs(angle_increment) * (1.0 if self._centred else 2.0)
        # The small number keeps the rounding of a float32 header from counting as sparse.
        self._reach = max(0, math.ceil(0.5 * spacing / spec.sector - 0.5 - 1e-6)) if beams > 1 else 0
        if self._centred:
            sectors = self._sectors(directions)
            order = np.argsort(sectors, axis=None, kind="stable")
            flat = sectors.reshape(-1)[order]
            inside = flat < spec.beams
            beam_of = np.broadcast_to(np.arange(beams), sectors.shape).reshape(-1)
            self._source = beam_of[order][inside]
            self._filled, self._starts = np.unique(flat[inside], return_index=True)

    def __call__(
        self, ranges: FloatArray, twists: DoubleArray | None = None, time_increment: float = 0.0
    ) -> FloatArray:
        """Resample ``(m,)`` or ``(N, m)`` ranges, metres, to ``(n,)`` or ``(N, n)`` float32.

        Args:
            ranges: as the sensor reports them.
            twists: ``(3,)`` or ``(N, 3)``, how the robot moved while its lidar turned: vx, vy, wz in
                ``base_link``. What was seen is then given as seen from where the last beam was taken.
            time_increment: seconds from one beam to the next.

        Raises:
            InvalidInput: the number of ranges is not that of the header.
        """
        if ranges.shape[-1] != self.beams:
            raise InvalidInput(f"scan has {ranges.shape[-1]} ranges, expected {self.beams}")
        distances = interpret_ranges(ranges, self._scan_min, self._scan_max)
        rows = distances.reshape(-1, self.beams)
        nearest = self._nearest_centred(rows) if self._centred else self._nearest_offset(rows)
        if twists is not None and time_increment > 0.0:
            speeds = np.broadcast_to(twists, (len(rows), 3))
            moved = moves_much(speeds, time_increment * (self.beams - 1))
            if moved.any():
                nearest[moved] = self._nearest_moving(
                    rows[moved], speeds[moved], time_increment, nearest[moved]
                )
        clipped: FloatArray = np.clip(nearest, self.spec.range_min, self.spec.range_max).astype(np.float32)
        return clipped.reshape((*ranges.shape[:-1], self.spec.beams))

    def sectors(self, directions: Any, xp: ModuleType) -> Any:
        """Sectors ``(offsets, ...)`` that beams in these directions speak for; n where there is none.

        Args:
            directions: in ``base_link``, radians.
            xp: ``numpy`` or ``torch``, whichever they are of; the sectors are numbers of the same type.
        """
        spec = self.spec
        # In sectors from the field of view's lower edge on; a border's own slack goes before the
        # turn is wrapped, or a direction just below the lower edge would be a full turn away.
        turn = xp.remainder(directions - spec.angle_min + _BORDER * spec.sector, 2.0 * math.pi)
        own = xp.floor(turn / spec.sector)
        sectors = xp.stack([own + offset for offset in range(-self._reach, self._reach + 1)])
        if spec.angle_max - spec.angle_min >= _FULL_TURN:
            return xp.remainder(sectors, spec.beams)
        return xp.where((sectors >= 0) & (sectors < spec.beams), sectors, spec.beams)

    def _sectors(self, directions: DoubleArray) -> NDArray[np.intp]:
        sectors: NDArray[np.intp] = self.sectors(directions, np).astype(np.intp)
        return sectors

    def _nearest_centred(self, rows: DoubleArray) -> DoubleArray:
        nearest = np.full((rows.shape[0], self.spec.beams), math.inf)
        if self._filled.size:
            nearest[:, self._filled] = np.minimum.reduceat(rows[:, self._source], self._starts, axis=1)
        return nearest

    def _nearest_offset(self, rows: DoubleArray) -> DoubleArray:
        hit = np.isfinite(rows)
        reach = np.where(hit, rows, 0.0)
        x = self._mount.x + reach * self._cos
        y = self._mount.y + reach * self._sin
        distance = np.where(hit, np.hypot(x, y), math.inf)
        return self._nearest(self._sectors(np.arctan2(y, x)), distance)

    def _nearest_moving(
        self, rows: DoubleArray, twists: DoubleArray, time_increment: float, unmoved: DoubleArray
    ) -> DoubleArray:
        """`_nearest_offset` of robots that moved; ``unmoved`` is what they see if that is ignored."""
        ages = time_increment * np.arange(self.beams - 1, -1, -1, dtype=np.float64)
        x, y, yaw = _moved(twists, -ages)
        c, s = np.cos(yaw), np.sin(yaw)
        x, y = x + c * self._mount.x - s * self._mount.y, y + s * self._mount.x + c * self._mount.y
        directions = self._directions + yaw
        hit = np.isfinite(rows)
        reach = np.where(hit, rows, 0.0)
        x, y = x + reach * np.cos(directions), y + reach * np.sin(directions)
        sectors = self._sectors(np.where(hit, np.arctan2(y, x), directions))
        nearest = self._nearest(sectors, np.where(hit, np.hypot(x, y), math.inf))
        # Where the robot turned against its lidar, or drove past a seam, no beam tells what is there now.
        looked = np.isfinite(self._nearest(sectors, np.zeros(rows.shape)))
        filled: DoubleArray = np.where(looked, nearest, unmoved)
        return filled

    def _nearest(self, sectors: NDArray[np.intp], distance: DoubleArray) -> DoubleArray:
        """Least of the distances ``(N, m)`` of each sector's beams; inf where it has none."""
        width = self.spec.beams + 1
        rows = len(distance)
        nearest = np.full(rows * width, math.inf)
        cells = sectors + (width * np.arange(rows))[None, :, None]
        np.minimum.at(nearest, cells.reshape(-1), np.broadcast_to(distance, sectors.shape).reshape(-1))
        return nearest.reshape(-1, width)[:, : self.spec.beams]


def _moved(twists: DoubleArray, times: DoubleArray) -> tuple[DoubleArray, DoubleArray, DoubleArray]:
    """x, y, yaw, ``(N, m)`` each, after ``(m,)`` seconds of steady ``(N, 3)`` twists, from the origin."""
    vx, vy, wz = twists[:, 0, None], twists[:, 1, None], twists[:, 2, None]
    yaw = times * wz
    # sin(yaw) / wz and (1 - cos(yaw)) / wz, also where wz is 0.
    along = times * np.sinc(yaw / math.pi)
    aside = times * 0.5 * yaw * np.sinc(0.5 * yaw / math.pi) ** 2
    return vx * along - vy * aside, vx * aside + vy * along, yaw


# Below these a robot moved too little during a rotation of its lidar for it to matter.
_STILL_TURN = math.radians(0.5)
_STILL_WAY = 0.01


def moves_much(twists: DoubleArray, duration: float) -> NDArray[np.bool_]:
    """Whether robots with these twists ``(N, 3)`` move enough in so many seconds to blur a scan."""
    way = np.hypot(twists[:, 0], twists[:, 1]) * duration
    blurred: NDArray[np.bool_] = (way > _STILL_WAY) | (np.abs(twists[:, 2]) * duration > _STILL_TURN)
    return blurred


def interpret_ranges(ranges: FloatArray, range_min: float, range_max: float) -> DoubleArray:
    """Distances of obstacles, metres, ``inf`` for no return, by the rule of this module."""
    r = np.asarray(ranges, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        # As float32, which readings are: float32(8.2) is below 8.2, and is "no return" all the same.
        obstacle = (r > ERROR_CODE_LIMIT) & (r < float(np.float32(range_max)))
    return np.where(obstacle, r, np.where(r == -math.inf, range_min, math.inf))


def obstacle_points(
    scan: LaserScan, mount: Pose2D, flipped: bool = False, twist: Twist2D | None = None
) -> DoubleArray:
    """``(P, 2)`` what a scan hit, in ``base_link``, metres; all of it, for guards and lines of sight.

    Args:
        scan: as the sensor reports it.
        mount: pose of the lidar in ``base_link``.
        flipped: the lidar hangs upside down.
        twist: how the robot moved while the scan was taken; ``None``: it stood.
    """
    distances = interpret_ranges(scan.ranges, scan.range_min, scan.range_max)
    hit = np.flatnonzero(np.isfinite(distances))
    directions = mount.yaw + (-1.0 if flipped else 1.0) * (scan.angle_min + scan.angle_increment * hit)
    x0, y0 = mount.x, mount.y
    if twist is not None and scan.time_increment > 0.0:
        ages: DoubleArray = np.float64(scan.time_increment) * (scan.ranges.size - 1 - hit)
        x, y, yaw = (part[0] for part in _moved(np.array([twist]), -ages))
        c, s = np.cos(yaw), np.sin(yaw)
        x0, y0 = x + c * mount.x - s * mount.y, y + s * mount.x + c * mount.y
        directions = directions + yaw
    reach = distances[hit]
    return np.stack((x0 + reach * np.cos(directions), y0 + reach * np.sin(directions)), axis=1)


def check_scan(scan: LaserScan) -> None:
    """Refuse a scan that says nothing at all.

    Raises:
        InvalidInput: not one range is a finite number.
    """
    if not np.isfinite(scan.ranges).any():
        raise InvalidInput(f"none of the scan's {scan.ranges.size} ranges is a finite number")


class ScanConverter:
    """`ScanResampler` for a stream whose header may change from scan to scan (rotating lidars)."""

    _KEPT = 16

    def __init__(self, spec: ObservationSpec, mount: Pose2D, flipped: bool = False) -> None:
        self._spec, self._mount, self._flipped = spec, mount, flipped
        self._resamplers: dict[tuple[float, float, int, float, float], ScanResampler] = {}

    def __call__(self, scan: LaserScan, twist: Twist2D | None = None) -> FloatArray:
        """The scan as ``(n,)`` policy beams, metres.

        Args:
            scan: the scan.
            twist: how the robot moved while the scan was taken; ``None``: it stood.
        """
        key = (scan.angle_min, scan.angle_increment, scan.ranges.size, scan.range_min, scan.range_max)
        resampler = self._resamplers.get(key)
        if resampler is None:
            if len(self._resamplers) >= self._KEPT:
                self._resamplers.pop(next(iter(self._resamplers)))
            angle_min, increment, beams, range_min, range_max = key
            resampler = ScanResampler(
                self._spec, angle_min, increment, beams, range_min, range_max, self._mount, self._flipped
            )
            self._resamplers[key] = resampler
        return resampler(scan.ranges, None if twist is None else np.array(twist), scan.time_increment)


class FrameStack:
    """The last k scans of N robots, newest last; a robot's first scan fills all k.

    Args:
        spec: gives k and n.
        num_robots: N.
    """

    def __init__(self, spec: ObservationSpec, num_robots: int = 1) -> None:
        self._frames: FloatArray = np.zeros((num_robots, *spec.scan_shape), dtype=np.float32)
        self._fresh = np.ones(num_robots, dtype=np.bool_)

    def push(self, scans: FloatArray) -> FloatArray:
        """Add ``(N, n)`` newest scans; returns the stacks ``(N, k, n)`` (a copy)."""
        stale = ~self._fresh
        self._frames[stale, :-1] = self._frames[stale, 1:]
        self._frames[stale, -1] = scans[stale]
        self._frames[self._fresh] = scans[self._fresh, None]
        self._fresh[:] = False
        stacks: FloatArray = self._frames.copy()
        return stacks

    def restart(self, robots: NDArray[np.generic] | slice = slice(None)) -> None:
        """Forget the past of these robots (indices or mask): a new episode begins."""
        self._fresh[robots] = True

    @property
    def frames(self) -> FloatArray:
        """``(N, k, n)`` the stacks as they are."""
        return self._frames

    def restore(self, frames: FloatArray) -> None:
        """Go on from stacks ``(N, k, n)`` that were saved."""
        self._frames[:] = frames
        self._fresh[:] = False

    def restarted(self, robots: NDArray[np.generic], scans: FloatArray) -> FloatArray:
        """`restart` these robots alone with their first scans ``(M, n)``; returns their stacks."""
        self._frames[robots] = scans[:, None]
        self._fresh[robots] = False
        stacks: FloatArray = self._frames[robots].copy()
        return stacks


def triplets_of(stacks: FloatArray, goals: DoubleArray, poses: DoubleArray, speeds: DoubleArray) -> Triplet:
    """N robots' triplets.

    Args:
        stacks: ``(N, k, n)`` from `FrameStack`.
        goals, poses: ``(N, 3)`` x, y, yaw, both in one frame.
        speeds: ``(N, 3)`` vx, vy, wz in ``base_link``.
    """
    return Triplet(stacks, relative_poses(goals, poses).astype(np.float32), speeds.astype(np.float32))


def triplet_of(stack: FloatArray, goal: Pose2D, pose: Pose2D, speed: Twist2D) -> Triplet:
    """One robot's triplet, by the very arithmetic of `triplets_of`."""
    batch = triplets_of(stack[None], np.array([goal]), np.array([pose]), np.array([speed]))
    return Triplet(batch.scan[0], batch.goal[0], batch.speed[0])


def probe(spec: ObservationSpec) -> Triplet:
    """Four made-up triplets, the same everywhere: what a policy makes of them can be compared."""
    k, n = spec.scan_shape
    wave = np.sin(np.arange(4 * k * n, dtype=np.float64).reshape(4, k, n) * 0.7)
    scans = np.clip(3.0 + 2.5 * wave, spec.range_min, spec.range_max)
    goals = np.array([[2.0, 0.5, 0.0], [-1.0, 3.0, 1.5], [8.0, -6.0, -2.0], [0.3, 0.0, 3.0]])
    speeds = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.5], [0.5, 0.2, -1.0], [0.1, 0.0, 0.0]])
    made = Triplet(scans.astype(np.float32), goals.astype(np.float32), speeds.astype(np.float32))
    return with_guidance(made, spec)


def encode_scan(scan: Any, xp: ModuleType) -> Any:
    """Ranges in metres to network input ``(ln r - 1) / 2``: near obstacles get the resolution."""
    return 0.5 * xp.log(scan) - 0.5


def decode_scan(encoded: Any, spec: ObservationSpec, xp: ModuleType) -> Any:
    """Inverse of `encode_scan`, clipped to the observation's range in metres."""
    low = 0.5 * math.log(spec.range_min) - 0.5
    high = 0.5 * math.log(spec.range_max) - 0.5
    return xp.exp(2.0 * xp.clip(encoded, low, high) + 1.0)


def encode_state(goal: Any, speed: Any, spec: ObservationSpec, xp: ModuleType, guidance: Any = None) -> Any:
    """Goal, speed and guidance as network input.

    Args:
        goal: ``(..., 3)`` x, y, yaw in ``base_link``; metres and radians.
        speed: ``(..., 3)`` vx, vy, wz.
        spec: gives the scale of speeds.
        xp: ``numpy`` or ``torch``, whichever the arguments are of.
        guidance: ``(..., 3)`` of `with_guidance`, if the spec has it.

    Returns:
        ``(..., spec.state_features)``: cosine and sine of the goal's bearing, distance clipped at
        10 m, exp(-distance), cosine and sine of the goal's yaw, scaled speeds; cosine and sine of
        where the way begins, and its excess through tanh.
    """
    x, y, yaw = goal[..., 0], goal[..., 1], goal[..., 2]
    distance = xp.sqrt(x * x + y * y + 1e-12)
    features = [
        x / distance,
        y / distance,
        xp.clip(distance, 0.0, _FAR) * (2.0 / _FAR) - 1.0,
        xp.exp(-distance),
        xp.cos(yaw),
        xp.sin(yaw),
    ]
    features.extend(speed[..., i] / spec.speed_scale[i] for i in range(SPEED_FEATURES))
    if spec.guidance:
        features.extend((guidance[..., 0], guidance[..., 1], xp.tanh(guidance[..., 2] / _EXCESS)))
    return xp.stack(features, -1)
