"""Many robots in many worlds at once: motion, contacts, odometry and scans.

The simulator owns state and its order of events; the arithmetic is in `kernels`. It
knows no task: goals, rewards, episodes and walkers' intentions belong to whoever drives it.

Randomness depends only on the seed, the world's stream number, the robot's place in its
world and its own counters, so a robot meets the same noise alone or among thousands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from scanpilot.geometry import wrap_angle
from scanpilot.robot import Footprint, Lidar, RobotSpec
from scanpilot.sim import kernels
from scanpilot.sim.world import World
from scanpilot.types import BoolArray, DoubleArray, FloatArray


@dataclass(frozen=True)
class SimulatorConfig:
    """What differs from an ideal simulation; everything is off by default.

    Attributes:
        substep: longest time that robots move one after the other, seconds.
        scan_noise: standard deviation of a range, metres.
        scan_noise_proportional: the same as a fraction of the range.
        scan_dropout: probability of a beam to return nothing.
        scan_short: probability of a beam to return something nearer, as from dust.
        odometry_drift: standard deviation of the constant relative error of odometry
            (translation and rotation), drawn when a robot is placed.
        velocity_error: standard deviation of the constant relative error with which a robot follows
            its command, drawn when it is placed.
        scan_latency: age of a scan when it is asked for, seconds.
        scan_duration: seconds from its first beam to its last, which is ``scan_latency`` old.
        actuation_delay: seconds that commands act later than the robot's specification says.
        lidar_offset_error: standard deviation of a lidar's true place from where its mount says it
            is, along x and along y of base_link, metres; constant from when a robot is placed.
        lidar_yaw_error: the same of its direction, radians.
        vary: draw each robot's share of scan noise, of scan latency and duration, and of the added
            actuation delay, 0 to 1 of what is stated here, when it is placed; otherwise every
            robot has all of it. Times are shared out in quarters.
        robots_visible: whether robots see each other.
        robots_solid: whether robots hit each other.
        stage: move and scan as Stage does: Euler steps with the old heading, a step that ends
            in contact undone as a whole (contact then lasts until the robot moves), scans taken
            before the move.
        threads: that share the work; the results do not depend on it.
    """

    substep: float = 0.1
    scan_noise: float = 0.0
    scan_noise_proportional: float = 0.0
    scan_dropout: float = 0.0
    scan_short: float = 0.0
    odometry_drift: float = 0.0
    velocity_error: float = 0.0
    scan_latency: float = 0.0
    scan_duration: float = 0.0
    actuation_delay: float = 0.0
    lidar_offset_error: float = 0.0
    lidar_yaw_error: float = 0.0
    vary: bool = False
    robots_visible: bool = True
    robots_solid: bool = True
    stage: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.substep > 0.0:
            raise ValueError(f"substep is {self.substep} s, expected more than 0")
        for name in (
            "scan_noise",
            "scan_noise_proportional",
            "odometry_drift",
            "velocity_error",
            "scan_latency",
            "scan_duration",
            "actuation_delay",
            "lidar_offset_error",
            "lidar_yaw_error",
        ):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        for name in ("scan_dropout", "scan_short"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a probability")
        if self.scan_dropout + self.scan_short > 1.0:
            raise ValueError("scan_dropout and scan_short add up to more than 1")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}, expected at least 1")


@dataclass(frozen=True, eq=False)
class _Indexed:
    """One world's geometry sorted into tiles."""

    frame: tuple[float, float, float]
    tiles: tuple[int, int]
    segments: DoubleArray
    segment_flags: kernels.ByteArray
    segment_start: kernels.IntArray
    circles: DoubleArray
    circle_flags: kernels.ByteArray
    circle_start: kernels.IntArray


def _index(world: World) -> _Indexed:
    """Sort a world into tiles; remembered by the world, so that swapping it in again is a copy."""
    known = world._cache.get("tiles")
    if isinstance(known, _Indexed):
        return known
    x0, y0, x1, y1 = world.bounds
    size = _tile_size(world)
    frame = (x0 - 1e-6, y0 - 1e-6, size)
    nx = max(1, math.ceil((x1 - x0 + 2e-6) / size))
    ny = max(1, math.ceil((y1 - y0 + 2e-6) / size))
    at = np.array(frame)
    segments, flags, starts = kernels.index_segments(world.segments, world.segment_flags, at, nx, ny)
    circles, circle_flags, circle_starts = kernels.index_circles(
        world.circles, world.circle_flags, at, nx, ny
    )
    indexed = _Indexed(frame, (nx, ny), segments, flags, starts, circles, circle_flags, circle_starts)
    world._cache["tiles"] = indexed
    return indexed


# A scan that takes time is taken from so many poses on the way.
SLICES = 8
# Times that vary from robot to robot are multiples of a share of the longest: robots of equal lateness
# are scanned together, and a step is cut at the same moments whichever robots are in the batch.
SHARES = 4
# Work that threads share is cut into so many pieces for each.
_PIECES = 4
# Commands and steps meet at sums of many durations: so many seconds decide nothing.
_SLACK = 1e-9
_PER_TILE = 24.0  # measured best or nearly so from 100 to 13,000 segments


def _tile_size(world: World) -> float:
    """Tiles that hold about `_PER_TILE` things where things are, at least half a metre, at most 64 across."""
    x0, y0, x1, y1 = world.bounds
    width, height = max(x1 - x0, 1e-3), max(y1 - y0, 1e-3)
    things = len(world.segments) + len(world.circles)
    size = math.sqrt(width * height * _PER_TILE / max(things, 1))
    return max(size, 0.5, max(width, height) / 64.0)


def allocate(worlds: Sequence[World], movers: int = 0) -> kernels.Geometry:
    """Geometry with a slot for each world, a little larger than the largest of them needs."""
    indexed = [_index(world) for world in worlds]
    count = len(worlds)
    tiles = _roomy(max(i.tiles[0] * i.tiles[1] for i in indexed))
    segments = _roomy(max(len(i.segments) for i in indexed))
    circles = _roomy(max(len(i.circles) for i in indexed))
    geometry = kernels.Geometry(
        frame=np.zeros((count, 3)),
        tiles=np.zeros((count, 2), np.int64),
        segment_start=np.zeros((count, tiles + 1), np.int64),
        circle_start=np.zeros((count, tiles + 1), np.int64),
        segments=np.zeros((count, segments, 4)),
        segment_flags=np.zeros((count, segments), np.uint8),
        circles=np.zeros((count, circles, 3)),
        circle_flags=np.zeros((count, circles), np.uint8),
        movers=np.full((count, movers, 3), -1.0),
    )
    for slot, world in enumerate(worlds):
        _fill(geometry, slot, _index(world))
    return geometry


def _roomy(need: int) -> int:
    return need + need // 4


def _fits(geometry: kernels.Geometry, indexed: _Indexed) -> bool:
    return bool(
        indexed.tiles[0] * indexed.tiles[1] < geometry.segment_start.shape[1]
        and len(indexed.segments) <= geometry.segments.shape[1]
        and len(indexed.circles) <= geometry.circles.shape[1]
    )


def _fill(geometry: kernels.Geometry, slot: int, indexed: _Indexed) -> None:
    geometry.frame[slot] = indexed.frame
    geometry.tiles[slot] = indexed.tiles
    geometry.segment_start[slot, : len(indexed.segment_start)] = indexed.segment_start
    geometry.circle_start[slot, : len(indexed.circle_start)] = indexed.circle_start
    geometry.segments[slot, : len(indexed.segments)] = indexed.segments
    geometry.segment_flags[slot, : len(indexed.segments)] = indexed.segment_flags
    geometry.circles[slot, : len(indexed.circles)] = indexed.circles
    geometry.circle_flags[slot, : len(indexed.circles)] = indexed.circle_flags


def make_body(
    footprint: Footprint, *, outline: DoubleArray | None = None, visible: bool = True, solid: bool = True
) -> kernels.Body:
    """A footprint as the kernels take it; lidars see it too unless another outline is given."""
    polygon = np.array(footprint.polygon if footprint.polygon else np.zeros((0, 2)), dtype=np.float64)
    radius = float(footprint.circumscribed_radius)
    if outline is None:
        return kernels.Body(polygon, radius, polygon, radius, visible, solid)
    seen = np.ascontiguousarray(outline, dtype=np.float64)
    return kernels.Body(polygon, radius, seen, float(np.hypot(*seen.T).max()), visible, solid)


def make_beams(lidar: Lidar, robots: int) -> kernels.Beams:
    """A lidar's beam directions as the kernels take them, mounted alike on so many robots."""
    angles = np.arange(lidar.beams) * (lidar.angle_increment if lidar.beams > 1 else 0.0)
    dx, dy = np.cos(angles), np.sin(angles)
    pseudo = np.array([kernels.pseudo_angle(float(x), float(y)) for x, y in zip(dx, dy, strict=True)])
    # The first beam looks along its own frame's x axis, whatever rounding says of the last one.
    pseudo[0] = 0.0
    pseudo = np.maximum.accumulate(pseudo)
    # Many buckets a beam, so that few searches go on past the table, as long as it stays in the cache.
    wanted = min(16 * lidar.beams, max(8192, 4 * lidar.beams))
    buckets = 1 << max(6, math.ceil(math.log2(wanted)))
    edges = np.arange(buckets + 1) * (4.0 / buckets)
    table = np.searchsorted(pseudo, edges, side="left").astype(np.int32)
    return kernels.Beams(dx, dy, pseudo, table, np.tile(_mounted(lidar), (robots, 1)), float(lidar.range_max))


def _mounted(lidar: Lidar) -> DoubleArray:
    """Where a lidar is meant to be: x, y in base_link and the direction of its first beam there."""
    mount = lidar.mount
    return np.array((mount.x, mount.y, mount.yaw + lidar.angle_min), dtype=np.float64)


class Simulator:
    """A batch of equal robots, ``robots_per_world`` in each world; robot i is in world i // robots_per_world.

    Robots of one world are obstacles to each other and see each other. In each substep they move in
    turn. A robot that meets something stays at its last free pose (within 2 mm of what it met) with
    zero velocity until the next `step`; the one it ran into is not in contact unless it moved too.

    Attributes:
        num_robots: N.
        worlds: as they are now, one for each slot.
        poses: ``(N, 3)`` float64 x, y, yaw in the world frame.
        twists: ``(N, 3)`` float64 actual velocity in base_link, m/s and rad/s.
        odometry: ``(N, 3)`` float64 pose in the odometry frame; starts at zero.
        time: seconds simulated.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        robot: RobotSpec,
        robots_per_world: int,
        config: SimulatorConfig | None = None,
        seed: int = 0,
        *,
        streams: Sequence[int] | None = None,
        movers: int = 0,
        seen_outline: DoubleArray | None = None,
    ) -> None:
        """Set up the worlds; robots stand at the origin until they are placed.

        Args:
            worlds: one for each slot.
            robot: what every robot is.
            robots_per_world: R; the batch has ``len(worlds) * R`` robots.
            config: departures from the ideal.
            seed: of all noise.
            streams: number of each world's noise; by default its slot. A world simulated alone with
                the same number meets the same noise as in the batch.
            movers: room for so many moving discs in each world.
            seen_outline: ``(Q, 2)`` convex, counter-clockwise: what robots see of each other where
                that is not their footprint, as when beams pass above the body and meet a mast.
        """
        if not worlds:
            raise ValueError("a simulator needs at least one world")
        if robots_per_world < 1:
            raise ValueError(f"robots_per_world is {robots_per_world}, expected at least 1")
        self.worlds = list(worlds)
        self.robot = robot
        self.robots_per_world = robots_per_world
        self.config = config or SimulatorConfig()
        self.num_robots = len(worlds) * robots_per_world
        n = self.num_robots
        self.poses: DoubleArray = np.zeros((n, 3))
        self.twists: DoubleArray = np.zeros((n, 3))
        self.odometry: DoubleArray = np.zeros((n, 3))
        self.time = 0.0
        self._seed = seed
        own = np.arange(len(worlds)) if streams is None else np.asarray(streams, dtype=np.int64)
        places = np.arange(robots_per_world, dtype=np.int64)
        self._keys = (own[:, None] * 65536 + places[None, :]).reshape(-1).astype(np.int64)
        self._scans = np.zeros(n, np.int64)
        self._episodes = np.zeros(n, np.int64)
        self._drift: DoubleArray = np.ones((n, 3))
        self._gain: DoubleArray = np.ones((n, 3))
        self._severity: DoubleArray = np.ones(n)
        # Each robot's share of the scan's lateness, and which of `_delays` it has.
        self._lateness: DoubleArray = np.ones(n)
        self._delay_index = np.zeros(n, np.int64)
        # Where robots and moving discs were, for scans that are not of now; times of `time`'s zero.
        self._past: list[tuple[float, DoubleArray, DoubleArray]] = []
        self._everyone = np.arange(n, dtype=np.int64)
        self._geometry = allocate(self.worlds, movers)
        self._body = make_body(
            robot.footprint,
            outline=seen_outline,
            visible=self.config.robots_visible,
            solid=self.config.robots_solid,
        )
        self._beams: dict[Lidar, kernels.Beams] = {}
        self._beams_of(robot.lidar)
        self._base = _make_base(robot, self.config.stage)
        self._delays = _delays(robot, self.config)
        self._issued: list[tuple[float, DoubleArray]] = [(-math.inf, np.zeros((n, 3)))]
        self._pool = ThreadPoolExecutor(self.config.threads) if self.config.threads > 1 else None
        self._scan_before: FloatArray | None = None
        self._stalled: BoolArray = np.zeros(n, dtype=np.bool_)

    def place(self, indices: Sequence[int] | kernels.IntArray | BoolArray, poses: DoubleArray) -> None:
        """Put some robots at ``(K, 3)`` poses, at rest, with no command pending.

        Odometry stays where it was, as wheels do when a robot is carried; see `reset_odometry`.
        """
        at = self._as_indices(indices)
        if not np.isfinite(poses).all():
            raise ValueError("poses hold a number that is not finite")
        self.poses[at] = poses
        self.twists[at] = 0.0
        for _, commands in self._issued:
            commands[at] = 0.0
        self._stalled[at] = False
        self._episodes[at] += 1
        for _, past, _ in self._past:
            past[at] = poses
        self._draw_errors(at)
        self._scan_before = None

    def _draw_errors(self, at: kernels.IntArray) -> None:
        """The constants of robots that begin an episode; its number decides, not what was before."""
        c = self.config
        for purpose, deviation, factors in (
            (0, c.odometry_drift, self._drift),
            (4, c.velocity_error, self._gain),
        ):
            if deviation > 0.0:
                self._draw_normals(purpose, at, np.ones(3), np.full(3, deviation), factors)
        for lidar in self._beams:
            self._draw_mounts(lidar, at)
        if c.vary:
            self._draw_variety(at)

    def _draw_variety(self, at: kernels.IntArray) -> None:
        """How much of what varies some robots have."""
        self._severity[at] = self._draw_shares(5, at)
        self._lateness[at] = np.floor(self._draw_shares(6, at) * (SHARES + 1)) / SHARES
        self._delay_index[at] = (self._draw_shares(7, at) * len(self._delays)).astype(np.int64)

    def _draw_mounts(self, lidar: Lidar, at: kernels.IntArray) -> None:
        """How the lidars of some robots are really mounted."""
        c = self.config
        deviation = np.array((c.lidar_offset_error, c.lidar_offset_error, c.lidar_yaw_error))
        if deviation.any():
            purpose = 16 + list(self._beams).index(lidar)
            self._draw_normals(purpose, at, _mounted(lidar), deviation, self._beams[lidar].mounts)

    def _draw_normals(
        self, purpose: int, at: kernels.IntArray, mean: DoubleArray, deviation: DoubleArray, out: DoubleArray
    ) -> None:
        kernels.draw_normals(self._seed + purpose, self._keys, self._episodes, at, mean, deviation, out)

    def _draw_shares(self, purpose: int, at: kernels.IntArray) -> DoubleArray:
        shares = np.empty(self.num_robots)
        kernels.draw_shares(self._seed + purpose, self._keys, self._episodes, at, shares)
        return shares[at]

    def _beams_of(self, lidar: Lidar) -> kernels.Beams:
        beams = self._beams.get(lidar)
        if beams is None:
            beams = self._beams[lidar] = make_beams(lidar, self.num_robots)
            self._draw_mounts(lidar, np.flatnonzero(self._episodes))
        return beams

    def reset_odometry(self, indices: Sequence[int] | kernels.IntArray | BoolArray) -> None:
        """Let the odometry of some robots start again at zero."""
        self.odometry[self._as_indices(indices)] = 0.0

    def set_worlds(self, world_indices: Sequence[int] | kernels.IntArray, worlds: Sequence[World]) -> None:
        """Put other worlds in some slots; their robots keep their poses until they are placed."""
        for slot, world in zip(world_indices, worlds, strict=True):
            self.worlds[int(slot)] = world
        if all(_fits(self._geometry, _index(world)) for world in worlds):
            for slot, world in zip(world_indices, worlds, strict=True):
                _fill(self._geometry, int(slot), _index(world))
            return
        movers = self._geometry.movers
        self._geometry = allocate(self.worlds, movers.shape[1])
        self._geometry.movers[:] = movers

    def set_movers(self, movers: DoubleArray) -> None:
        """Say where the moving discs are: ``(W, M, 3)`` x, y, radius; a radius below 0 is none.

        Late scans see those that changed where they are now, as with `place`; see `walk`.
        """
        if not np.isfinite(movers).all():
            raise ValueError("movers hold a number that is not finite")
        changed = (movers != self._geometry.movers).any(axis=2)
        for _, _, past in self._past:
            past[changed] = movers[changed]
        self._geometry.movers[:] = movers

    def movers(self) -> DoubleArray:
        """Where the moving discs are, ``(W, M, 3)`` as `set_movers` takes them; a copy."""
        return np.array(self._geometry.movers)

    def walk(self, targets: DoubleArray, speeds: DoubleArray, duration: float, margin: float) -> None:
        """Move the discs towards ``(W, M, 2)`` targets at ``(W, M)`` m/s, ``margin`` clear of everything.

        To be followed by a `step` of the same duration, at whose end they are where they are now.
        """
        self._remember()
        kernels.walk(
            self._geometry,
            self._body,
            self.poses,
            self.robots_per_world,
            targets,
            speeds,
            float(duration),
            float(margin),
        )

    def step(self, commands: DoubleArray | FloatArray, duration: float) -> BoolArray:
        """Drive all robots for ``duration`` seconds towards ``(N, 3)`` target velocities.

        Targets beyond the robot's limits are clipped. Velocities change no faster than its
        acceleration limits, from what they are; commands act after its actuation delay.

        Returns:
            ``(N,)`` whether each robot met something.
        """
        commands = self._own_commands(commands)
        if not duration > 0.0:
            raise ValueError(f"duration is {duration} s, expected more than 0")
        if self.config.stage:
            self._scan_before = self._scan(self.robot.lidar, self._everyone)
        idle = ~commands.any(axis=1)
        contacts = self._no_contacts()
        if self.config.velocity_error > 0.0:
            commands *= self._gain
        self._remember()
        for piece, target in self._effective(commands, duration):
            count = 1 if self.config.stage else max(1, math.ceil(piece / self.config.substep - 1e-9))
            for _ in range(count):
                self._substep(target, piece / count, contacts)
        self.time += duration
        self._remember()
        if self.config.stage:
            # Stage clears its stall only when a robot moves.
            contacts |= idle & self._stalled
            self._stalled = contacts.copy()
        return contacts

    def _own_commands(self, commands: DoubleArray | FloatArray) -> DoubleArray:
        """Checked, and a copy that may be kept."""
        own = np.array(commands, dtype=np.float64)
        if own.shape != (self.num_robots, 3):
            raise ValueError(f"commands have shape {own.shape}, expected ({self.num_robots}, 3)")
        if not np.isfinite(own).all():
            raise ValueError("commands hold a number that is not finite")
        return own

    def _no_contacts(self) -> BoolArray:
        return np.zeros(self.num_robots, dtype=np.bool_)

    def scan(
        self,
        lidar: Lidar | None = None,
        robots: Sequence[int] | kernels.IntArray | BoolArray | None = None,
    ) -> FloatArray:
        """``(K, beams)`` float32 ranges in metres of some robots, or of all of them, in their order.

        A beam that meets nothing returns `range_max`. In stage mode after a `step`, as seen before it.
        A robot's noise goes on from one of its own scans to the next, whichever others scan.

        Args:
            lidar: the robot's own unless another is given; a robot may have several.
            robots: K indices, or a mask ``(N,)``.
        """
        if self._scan_before is not None and lidar is None:
            return self._scan_before if robots is None else self._scan_before[self._as_indices(robots)]
        at = self._everyone if robots is None else self._as_indices(robots)
        return self._scan(lidar or self.robot.lidar, at)

    def _remember(self) -> None:
        """Keep where everybody is for as long as a scan may look back."""
        oldest = self.config.scan_latency + self.config.scan_duration
        if oldest == 0.0:
            return
        if not self._past or self._past[-1][0] < self.time:
            self._past.append((self.time, deepcopy(self.poses), self._geometry.movers.copy()))
        while len(self._past) > 2 and self._past[1][0] <= self.time - oldest:
            self._past.pop(0)

    def _seen_at(self, time: float) -> tuple[DoubleArray, DoubleArray]:
        """Where robots and moving discs were at a time, on straight lines between what is remembered."""
        if not self._past or time >= self._past[-1][0]:
            return self.poses, self._geometry.movers
        if time <= self._past[0][0]:
            return self._past[0][1:]
        after = next(index for index, (when, _, _) in enumerate(self._past) if when >= time)
        (t0, poses0, movers0), (t1, poses1, movers1) = self._past[after - 1], self._past[after]
        share = (time - t0) / (t1 - t0)
        poses = poses0 + share * (poses1 - poses0)
        poses[:, 2] = poses0[:, 2] + share * wrap_angle(poses1[:, 2] - poses0[:, 2])
        return poses, movers0 + share * (movers1 - movers0)

    def clearance(self) -> DoubleArray:
        """``(N,)`` distance from each footprint to the nearest obstacle or other robot, metres.

        Not above 0 where they overlap; infinite in an empty world.
        """
        out = np.empty(self.num_robots)
        self._share(
            self.num_robots,
            1024,
            lambda begin, end: kernels.clearances(
                self._geometry, self._body, self.poses, self.robots_per_world, begin, end, math.inf, out
            ),
        )
        return out

    def state_dict(self) -> dict[str, Any]:
        """Where all robots are and what they will do next, apart from the worlds."""
        return {
            "poses": self.poses,
            "twists": self.twists,
            "odometry": self.odometry,
            "time": self.time,
            "scans": self._scans,
            "episodes": self._episodes,
            "stalled": self._stalled,
            "past": [[when, poses, movers] for when, poses, movers in self._past],
            "issued": [
                [since if math.isfinite(since) else None, commands] for since, commands in self._issued
            ],
            "movers": self._geometry.movers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, in the same worlds."""
        self.poses[:], self.twists[:], self.odometry[:] = state["poses"], state["twists"], state["odometry"]
        self.time = float(state["time"])
        self._scans[:], self._episodes[:] = state["scans"], state["episodes"]
        self._stalled[:] = state["stalled"]
        self._draw_errors(np.flatnonzero(self._episodes))
        self._past = [
            (float(when), np.array(poses), np.array(movers)) for when, poses, movers in state["past"]
        ]
        self._issued = [
            (-math.inf if since is None else float(since), np.array(commands))
            for since, commands in state["issued"]
        ]
        self._geometry.movers[:] = state["movers"]
        self._scan_before = None

    def _substep(self, target: DoubleArray, duration: float, contacts: BoolArray) -> None:
        self._share(
            len(self.worlds),
            max(1, 1024 // self.robots_per_world),
            lambda begin, end: kernels.step(
                self._geometry,
                self._body,
                self._base,
                self.poses,
                self.twists,
                self.odometry,
                self._drift,
                target,
                float(duration),
                self.robots_per_world,
                begin,
                end,
                contacts,
            ),
        )

    def _scan(self, lidar: Lidar, robots: kernels.IntArray) -> FloatArray:
        beams = self._beams_of(lidar)
        ranges = np.empty((len(robots), lidar.beams), dtype=np.float32)
        self._scans[robots] += 1
        if self.config.scan_latency + self.config.scan_duration > 0.0:
            self._cast_late(beams, robots, ranges)
        else:
            self._cast(beams, self.poses, self._geometry.movers, robots, ranges)
        self._spoil(ranges, robots, lidar.range_max)
        return ranges

    def _cast_late(self, beams: kernels.Beams, robots: kernels.IntArray, ranges: FloatArray) -> None:
        """Scans of what was; one that takes time is taken in slices, each from where all were then."""
        latency, duration = self.config.scan_latency, self.config.scan_duration
        count = ranges.shape[1]
        slices = min(SLICES, count) if duration > 0.0 else 1
        shares = self._lateness[robots]
        for share in np.unique(shares):
            rows = np.flatnonzero(shares == share)
            whole = np.empty((len(rows), count), dtype=np.float32)
            for part in range(slices):
                age = share * (latency + duration * (1.0 - (part + 0.5) / slices))
                self._cast(beams, *self._seen_at(self.time - age), robots[rows], whole)
                columns = slice(count * part // slices, count * (part + 1) // slices)
                ranges[rows, columns] = whole[:, columns]

    def _cast(
        self,
        beams: kernels.Beams,
        poses: DoubleArray,
        movers: DoubleArray,
        robots: kernels.IntArray,
        ranges: FloatArray,
    ) -> None:
        geometry = self._geometry._replace(movers=movers)
        self._share(
            len(robots),
            max(1, 4096 // ranges.shape[1]),
            lambda begin, end: kernels.scan(
                geometry, self._body, beams, poses, self.robots_per_world, robots, begin, end, ranges
            ),
        )

    def _spoil(self, ranges: FloatArray, robots: kernels.IntArray, range_max: float) -> None:
        c = self.config
        if not (c.scan_noise or c.scan_noise_proportional or c.scan_dropout or c.scan_short):
            return
        self._share(
            len(robots),
            max(1, 4096 // ranges.shape[1]),
            lambda begin, end: kernels.spoil_ranges(
                ranges,
                self._seed,
                self._keys,
                self._scans,
                self._severity,
                float(c.scan_noise),
                float(c.scan_noise_proportional),
                float(c.scan_dropout),
                float(c.scan_short),
                float(range_max),
                robots,
                begin,
                end,
            ),
        )

    def _share(self, count: int, at_least: int, work: Callable[[int, int], None]) -> None:
        """Do ``work(begin, end)`` over ``count`` things, on several threads if that pays.

        Whoever is done takes the next piece, so that nobody waits for a thread that the machine is
        slow to wake or has taken away.
        """
        parts = min(_PIECES * self.config.threads, max(1, count // at_least))
        if self._pool is None or parts == 1:
            work(0, count)
            return
        edges = [count * part // parts for part in range(parts + 1)]
        pieces = list(itertools.pairwise(edges))

        def take() -> None:
            while pieces:
                try:
                    piece = pieces.pop()
                except IndexError:  # the other was faster
                    return
                work(*piece)

        helpers = [self._pool.submit(take) for _ in range(min(self.config.threads, parts) - 1)]
        take()
        for helper in helpers:
            if not helper.cancel():
                helper.result()

    def _effective(self, commands: DoubleArray, duration: float) -> list[tuple[float, DoubleArray]]:
        """The targets in force during the coming step, each with how long, after the actuation delays."""
        if self._delays == (0.0,):
            return [(duration, commands)]
        self._issued.append((self.time, commands))
        while len(self._issued) > 1 and self._issued[1][0] + self._delays[-1] <= self.time + _SLACK:
            self._issued.pop(0)
        changes = {0.0, duration}
        for since, _ in self._issued:
            changes.update(since + delay - self.time for delay in self._delays)
        edges = [0.0]
        for change in sorted(changes):
            if edges[-1] + _SLACK < change <= duration:
                edges.append(change)
        if duration - edges[-1] <= _SLACK:
            edges[-1] = duration
        return [
            (end - begin, self._targets_at(0.5 * (begin + end))) for begin, end in itertools.pairwise(edges)
        ]

    def _targets_at(self, moment: float) -> DoubleArray:
        """The targets ``(N, 3)`` in force so long after the step's beginning."""
        of_delay = []
        for delay in self._delays:
            acting = (
                target for since, target in reversed(self._issued) if since + delay <= self.time + moment
            )
            of_delay.append(next(acting, self._issued[0][1]))
        return of_delay[0] if len(of_delay) == 1 else self._by_delay(of_delay)

    def _by_delay(self, of_delay: Sequence[DoubleArray]) -> DoubleArray:
        """Each robot's row of the targets that are in force after its own delay."""
        return np.stack(of_delay)[self._delay_index, self._everyone]

    def _as_indices(self, indices: Sequence[int] | kernels.IntArray | BoolArray) -> kernels.IntArray:
        """As whole numbers from 0 to N - 1; kernels check no bounds.

        Raises:
            IndexError: there is no such robot.
        """
        at = np.asarray(indices)
        return np.atleast_1d(self._everyone[at if at.size else at.astype(np.int64)])


def _delays(robot: RobotSpec, config: SimulatorConfig) -> tuple[float, ...]:
    """The actuation delays that robots may have, seconds, shortest first."""
    least, more = robot.actuation_delay, config.actuation_delay
    if more > 0.0 and config.vary:
        return tuple(least + more * share / SHARES for share in range(SHARES + 1))
    return (least + more,)


def _make_base(robot: RobotSpec, euler: bool) -> kernels.Base:
    limits = robot.limits
    return kernels.Base(
        # Whole numbers would make numba compile everything once more for them.
        speed=(float(limits.vx), float(limits.vy), float(limits.wz)),
        acceleration=(float(limits.ax), float(limits.ay), float(limits.awz)),
        turning_radius=float(robot.turning_radius),
        euler=euler,
    )
