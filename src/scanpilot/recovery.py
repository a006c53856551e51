"""Noticing that a robot gets nowhere, and a few bounded motions that may free it; then giving up.

Knows neither policy nor guard: it is told poses and sight, and asks for velocities that somebody else
must pass through a guard. Parameters have the names of Nav2's progress checker and behaviours where the
meaning is the same. Units: metres, radians, seconds; poses in the odometry frame, points in `base_link`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scanpilot.geometry import wrap_angle
from scanpilot.robot import RobotSpec
from scanpilot.types import ZERO_TWIST, DoubleArray, InvalidInput, LaserScan, Pose2D, Twist2D

BEHAVIORS = ("wait", "spin", "backup")


@dataclass(frozen=True)
class RecoveryConfig:
    """When a robot counts as stuck, and what is then tried.

    Attributes:
        enabled: whether anything is noticed or tried.
        required_movement_radius: metres that the robot must get away within the time below.
        movement_time_allowance: seconds for that; after them it is stuck.
        blocked_time_allowance: seconds that the guard may keep it standing.
        circling_turns: whole turns the same way, without coming nearer to the goal, that are circling.
        behaviors: tried in this order, one each time: ``wait``, ``spin`` to the free side, ``backup``.
        number_of_retries: behaviors tried before giving up; counted afresh once the robot has come nearer
            to its goal than ever before by the movement radius.
        wait_duration: seconds.
        spin_speed: rad/s.
        backup_dist, backup_speed: metres and m/s.
        time_allowance: seconds after which a behavior ends in any case.
    """

    enabled: bool = True
    required_movement_radius: float = 0.5
    movement_time_allowance: float = 10.0
    blocked_time_allowance: float = 2.0
    circling_turns: float = 2.0
    behaviors: tuple[str, ...] = BEHAVIORS
    number_of_retries: int = 6
    wait_duration: float = 2.0
    spin_speed: float = 0.8
    backup_dist: float = 0.3
    backup_speed: float = 0.1
    time_allowance: float = 10.0

    def __post_init__(self) -> None:
        for name in (
            "required_movement_radius",
            "movement_time_allowance",
            "blocked_time_allowance",
            "circling_turns",
            "wait_duration",
            "spin_speed",
            "backup_dist",
            "backup_speed",
            "time_allowance",
        ):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"recovery {name} is {getattr(self, name)}, expected more than 0")
        if self.number_of_retries < 0:
            raise InvalidInput(f"recovery number_of_retries is {self.number_of_retries}, expected 0 or more")
        unknown = [name for name in self.behaviors if name not in BEHAVIORS]
        if unknown or not self.behaviors:
            raise InvalidInput(
                f"recovery behaviors {list(self.behaviors)}: expected some of {', '.join(BEHAVIORS)}"
            )


@dataclass(frozen=True)
class FieldOfView:
    """Directions that one lidar looks at, from where it sits in ``base_link``.

    Attributes:
        x, y: metres.
        start: first direction, radians, from which ``span`` radians counter-clockwise are seen.
        span: radians.
    """

    x: float
    y: float
    start: float
    span: float

    @staticmethod
    def of(scan: LaserScan, mount: Pose2D, flipped: bool) -> FieldOfView:
        """What a scan from a lidar mounted so has looked at, returns or none."""
        # Each beam speaks for half an increment to either side.
        half = 0.5 * abs(scan.angle_increment)
        first = scan.angle_min
        last = scan.angle_min + scan.angle_increment * (scan.ranges.size - 1)
        low = min(first, last) - half
        high = max(first, last) + half
        start = mount.yaw - high if flipped else mount.yaw + low
        return FieldOfView(mount.x, mount.y, start, min(high - low, 2.0 * math.pi))

    def sees(self, points: DoubleArray) -> DoubleArray:
        """``(P,)`` 1 where a point lies in one of its directions, else 0."""
        directions = np.arctan2(points[:, 1] - self.y, points[:, 0] - self.x)
        # Rounding must not hide the first direction behind a whole turn.
        turn = np.mod(directions - self.start + 1e-6, 2.0 * math.pi)
        return np.asarray(turn <= self.span + 2e-6, dtype=np.float64)


@dataclass(frozen=True)
class Sight:
    """What the robot sees around it now.

    Attributes:
        points: ``(P, 2)`` all that its lidars hit.
        fields: where they look.
    """

    points: DoubleArray
    fields: Sequence[FieldOfView]

    def covers(self, points: DoubleArray) -> bool:
        """Whether all of these places lie where some lidar looks."""
        seen = [field.sees(points) for field in self.fields]
        return bool(seen) and bool(np.maximum.reduce(seen).all())


class Progress:
    """Judges from poses whether a robot that should drive gets anywhere."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._nearest = math.inf
        self._at: Pose2D | None = None

    def restart(self) -> None:
        """Begin to watch anew, as after a recovery; the nearest approach to the goal is remembered."""
        self._at = None

    def forget(self) -> None:
        """There is another goal."""
        self._nearest = math.inf
        self._at = None

    def update(self, now: float, pose: Pose2D, goal_distance: float, blocked: bool) -> str | None:
        """Why the robot counts as stuck now, or ``None``."""
        config = self._config
        if self._at is None:
            self._at = self._anchor = self._since = pose
            self._anchored, self._free = now, now
            self._path = self._turned = 0.0
            if math.isinf(self._nearest):
                self._nearest = goal_distance
        self._path += math.hypot(pose.x - self._at.x, pose.y - self._at.y)
        self._turned += wrap_angle(pose.yaw - self._at.yaw)
        self._at = pose
        if math.hypot(pose.x - self._anchor.x, pose.y - self._anchor.y) >= config.required_movement_radius:
            self._anchor, self._anchored = pose, now
        if not blocked:
            self._free = now
        if now - self._free >= config.blocked_time_allowance:
            return f"the guard keeps it standing for {now - self._free:.0f} s"
        if now - self._anchored >= config.movement_time_allowance:
            return f"less than {config.required_movement_radius:g} m away in {now - self._anchored:.0f} s"
        return self._circling(pose)

    def came_nearer(self, pose: Pose2D, goal_distance: float) -> bool:
        """Whether it is nearer to the goal than ever by the movement radius; turns count afresh then."""
        if goal_distance > self._nearest - self._config.required_movement_radius:
            return False
        self._nearest = goal_distance
        self._since, self._path, self._turned = pose, 0.0, 0.0
        return True

    def _circling(self, pose: Pose2D) -> str | None:
        turns = abs(self._turned) / (2.0 * math.pi)
        net = math.hypot(pose.x - self._since.x, pose.y - self._since.y)
        if turns < self._config.circling_turns:
            return None
        # A quarter of the way: an arc that leads somewhere has left its start farther behind.
        if net > max(self._config.required_movement_radius, 0.25 * self._path):
            return None
        return f"circling: {turns:.0f} turns and {self._path:.1f} m of way led {net:.1f} m"


class Recovery:
    """Watches one robot, and takes over when it gets nowhere.

    Attributes:
        config: when it takes over and what it tries.
        words: what it is doing and why; empty while the policy drives.
        gave_up: why nothing is tried any more; ``None`` before that.
        count: behaviors begun since the start.
    """

    def __init__(self, config: RecoveryConfig, robot: RobotSpec) -> None:
        self.config, self._robot = config, robot
        self._progress = Progress(config)
        self.count = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew, as for another goal."""
        self._progress.forget()
        self._behavior = ""
        self._tried = 0
        self.words = ""
        self.gave_up: str | None = None

    def pause(self) -> None:
        """The robot stands for another reason: the time does not count."""
        self._progress.restart()
        self._behavior = self.words = ""

    def update(
        self, now: float, pose: Pose2D, goal_distance: float, sight: Sight, blocked: bool
    ) -> Twist2D | None:
        """The velocity that a recovery wants, or ``None``: the policy drives, or it gave up.

        Args:
            now: monotonic seconds.
            pose: of the robot.
            goal_distance: metres to the goal.
            sight: what it sees now.
            blocked: the guard left nothing of the speed that was wanted of the robot before.
        """
        if not self.config.enabled or self.gave_up is not None:
            return None
        if self._behavior:
            twist = self._go_on(now, pose)
            if twist is not None:
                return twist
            self.pause()
        why = self._progress.update(now, pose, goal_distance, blocked)
        if self._progress.came_nearer(pose, goal_distance):
            self._tried = 0
        return None if why is None else self._begin(why, now, pose, sight)

    def _begin(self, why: str, now: float, pose: Pose2D, sight: Sight) -> Twist2D | None:
        config = self.config
        while self._tried < config.number_of_retries:
            name = config.behaviors[self._tried % len(config.behaviors)]
            self._tried += 1
            if not self._prepare(name, pose, sight):
                continue
            self.count += 1
            self._behavior, self._began, self._from = name, now, pose
            self.words = f"{name} ({self._tried} of {config.number_of_retries}): {why}"
            return self._go_on(now, pose)
        self._behavior = self.words = ""
        self.gave_up = f"gave up after {config.number_of_retries} recoveries: {why}"
        return None

    def _prepare(self, name: str, pose: Pose2D, sight: Sight) -> bool:
        """Whether a behavior can be tried here."""
        if name == "spin":
            if self._robot.kinematics == "car":
                return False
            self._heading = wrap_angle(pose.yaw + free_direction(self._robot, sight))
        return name != "backup" or free_behind(self._robot, sight, self.config.backup_dist)

    def _go_on(self, now: float, pose: Pose2D) -> Twist2D | None:
        """The velocity of the behavior; ``None`` when it is over."""
        config = self.config
        elapsed = now - self._began
        if elapsed >= (config.wait_duration if self._behavior == "wait" else config.time_allowance):
            return None
        if self._behavior == "spin":
            left = wrap_angle(self._heading - pose.yaw)
            fastest = min(config.spin_speed, self._robot.limits.wz)
            return (
                None if abs(left) < _ALIGNED else Twist2D(0.0, 0.0, min(max(2.0 * left, -fastest), fastest))
            )
        if self._behavior == "backup":
            driven = math.hypot(pose.x - self._from.x, pose.y - self._from.y)
            return None if driven >= config.backup_dist else Twist2D(-config.backup_speed, 0.0, 0.0)
        return ZERO_TWIST


_ALIGNED = 0.1
# Nobody looks farther than this for a free side, metres.
_FAR = 3.0
# Less of a turn would lead into the same trouble again.
_LEAST_TURN = math.radians(45.0)
# Room beside the footprint, metres.
_MARGIN = 0.05


def free_direction(robot: RobotSpec, sight: Sight) -> float:
    """The direction with most room to drive straight on, radians; of equal ones the smallest turn.

    Directions that no lidar looks at count as shut.
    """
    half = robot.footprint.inscribed_radius + _MARGIN
    directions = np.radians(np.arange(-180, 180, 10))
    directions = directions[np.abs(directions) >= _LEAST_TURN - 1e-9]
    c, s = np.cos(directions)[:, None], np.sin(directions)[:, None]
    along = c * sight.points[:, 0] + s * sight.points[:, 1]
    aside = c * sight.points[:, 1] - s * sight.points[:, 0]
    room = np.where((along > 0.0) & (np.abs(aside) < half), along, _FAR).min(axis=1, initial=_FAR)
    looked = [sight.covers(np.array([[_FAR * math.cos(d), _FAR * math.sin(d)]])) for d in directions]
    room = np.where(looked, room, 0.0)
    best = np.flatnonzero(room >= room.max() - 1e-6)
    return float(directions[best[np.argmin(np.abs(directions[best]))]])


def free_behind(robot: RobotSpec, sight: Sight, distance: float) -> bool:
    """Whether the strip behind the footprint, so long, is seen by some lidar and empty."""
    radius = robot.footprint.circumscribed_radius
    corners = np.array(robot.footprint.polygon or [(-radius, radius)])
    rear, half = float(corners[:, 0].min()), float(np.abs(corners[:, 1]).max())
    end = rear - distance - _MARGIN
    strip = np.array([(x, y) for x in (rear, 0.5 * (rear + end), end) for y in (-half, 0.0, half)])
    x, y = sight.points[:, 0], sight.points[:, 1]
    # From the middle on: beside a round robot's rear there is something to meet as well.
    return sight.covers(strip) and not bool(((x > end) & (x < 0.0) & (np.abs(y) < half)).any())
