"""One robot's control tick: newest inputs, staleness, policy, guard, limits -> velocity.

Free of ROS: whoever owns a robot (a node, a test, a replay) hands in scans, odometry and goals as
they arrive and calls `Navigator.tick` once per control period. Every way in which the inputs can
be wrong ends in zero velocity and a reason in words that names the input.

Times called ``now`` are seconds on a monotonic clock. Staleness is judged by arrival on it alone,
so a simulated clock that stands still or jumps cannot keep a robot moving. Stamps are used for one
thing: when they run backwards (a looped bag, a reset simulator) the stacked frames start afresh.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from scanpilot.command import RateLimiter, commands, executed_actions, tightened
from scanpilot.frozen import FrozenScan
from scanpilot.geometry import compose, relative, transform_points, wrap_angle
from scanpilot.goals import Arrival, Phase, PlannedPath, Route, Target, Waypoints, turn_rate, turns_freely
from scanpilot.guard import Action, Guard, GuardConfig
from scanpilot.observation import (
    FrameStack,
    ObservationSpec,
    ScanConverter,
    check_scan,
    guide_for,
    obstacle_points,
    triplet_of,
)
from scanpilot.recovery import FieldOfView, Recovery, RecoveryConfig, Sight
from scanpilot.robot import Limits, RobotSpec
from scanpilot.types import (
    ORIGIN,
    ZERO_TWIST,
    DoubleArray,
    FloatArray,
    InvalidInput,
    LaserScan,
    Odometry,
    Pose2D,
    Triplet,
    Twist2D,
)

if TYPE_CHECKING:
    # Not at run time: a policy need not be a torch one.
    from scanpilot.policy import Policy

T = TypeVar("T")


class State(str, Enum):
    """What the robot is doing, as far as the navigator is concerned."""

    DRIVING = "driving"
    TURNING = "turning"
    RECOVERING = "recovering"
    GAVE_UP = "gave up"
    REACHED = "reached"
    NO_GOAL = "no goal"
    NO_POLICY = "no policy"
    BAD_INPUT = "bad input"
    DISABLED = "disabled"
    FAILED = "failed"


# The states in which the command need not be zero.
_MOVING = (State.DRIVING, State.TURNING, State.RECOVERING)


@dataclass(frozen=True)
class Command:
    """What to send to the robot now, and why.

    Attributes:
        twist: in ``base_link``; zero in every state but ``DRIVING``, ``TURNING`` and ``RECOVERING``.
        state: what the robot is doing.
        reason: in words; names the input where one is at fault.
        triplet: what the policy saw, where it was asked.
        guard: what the guard made of it.
    """

    twist: Twist2D
    state: State
    reason: str
    triplet: Triplet | None = None
    guard: Action = Action.NONE


@dataclass(frozen=True)
class NavigatorConfig:
    """How a navigator judges its inputs and its goal.

    Attributes:
        control_period: seconds between ticks; ``None`` takes the policy's.
        scan_timeout, odometry_timeout: seconds after its arrival for which an input may be acted
            on; ``None`` is `STALE_PERIODS` control periods.
        goal_tolerance: metres; nearer than this the goal is reached.
        goal_hysteresis: metres beyond the tolerance that a reached goal may move away before
            the robot sets off again.
        heading_tolerance: radians; within this of the goal's heading the robot stops to turn. 0: the
            heading does not matter.
        vx, vy, wz, ax, ay, awz: limits tighter than the policy's, m/s, rad/s, m/s^2, rad/s^2;
            ``None`` leaves one as it is.
        jx, jy, jwz: limits of jerk, m/s^3 and rad/s^3; ``None``: none. Stops are never limited.
        guard: the collision guard.
        recovery: what to do about a robot that gets nowhere.
        robot: that drives, where it is not the one the policy was trained for: the guard needs its true
            footprint.
    """

    control_period: float | None = None
    scan_timeout: float | None = None
    odometry_timeout: float | None = None
    goal_tolerance: float = 0.3
    goal_hysteresis: float = 0.15
    heading_tolerance: float = 0.0
    vx: float | None = None
    vy: float | None = None
    wz: float | None = None
    ax: float | None = None
    ay: float | None = None
    awz: float | None = None
    jx: float | None = None
    jy: float | None = None
    jwz: float | None = None
    guard: GuardConfig = field(default_factory=GuardConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    robot: RobotSpec | None = None

    def __post_init__(self) -> None:
        for name in ("jx", "jy", "jwz"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise InvalidInput(f"limit {name} is {value}, expected a positive number")
        for name in ("control_period", "scan_timeout", "odometry_timeout"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise InvalidInput(f"{name} is {value} s, expected more than 0")
        if not self.goal_tolerance > 0.0 or not self.goal_hysteresis >= 0.0:
            raise InvalidInput("goal_tolerance must be positive and goal_hysteresis not negative")
        if not 0.0 <= self.heading_tolerance <= math.pi:
            raise InvalidInput(f"heading_tolerance is {self.heading_tolerance} rad, expected 0 to pi")

    def arrival(self) -> Arrival:
        """What judges when a goal is reached."""
        return Arrival(self.goal_tolerance, self.goal_hysteresis, self.heading_tolerance)

    def limiter_for(self, policy: Policy) -> RateLimiter:
        """What shapes commands to drive; backwards only as a recovery does."""
        jerk = (self.jx or math.inf, self.jy or math.inf, self.jwz or math.inf)
        return RateLimiter(
            self.limits_for(policy), policy.robot.turning_radius, jerk, self.recovery.backup_speed
        )

    def limits_for(self, policy: Policy) -> Limits:
        """The policy's limits, tightened.

        Raises:
            InvalidInput: one of ours is wider than what the policy was trained with.
        """
        return tightened(
            policy.robot.limits, vx=self.vx, vy=self.vy, wz=self.wz, ax=self.ax, ay=self.ay, awz=self.awz
        )


# Less than two, so that a robot whose input died is stopped before two periods have passed.
STALE_PERIODS = 1.75
# A goal that moves by less than this, metres and radians, is the same goal.
# Odometry that goes farther than this from one tick to the next has jumped: what it remembers is elsewhere.
_JUMP = 1.0
_SAME_GOAL = 0.1
# Where there is no policy yet to say it.
DEFAULT_PERIOD = 0.2


class _Input(Generic[T]):
    """The newest of one input: its value or why it is unusable, and when it came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: T | None = None
        self.fault: str | None = None
        self.arrival: float | None = None

    def set(self, value: T | None, fault: str | None, now: float) -> None:
        self.value, self.fault, self.arrival = value, fault, now

    def age(self, now: float) -> float:
        return math.inf if self.arrival is None else max(0.0, now - self.arrival)

    def problem(self, now: float, timeout: float) -> str | None:
        if self.arrival is None:
            return f"{self.name}: nothing received yet"
        if self.age(now) > timeout:
            return f"{self.name} is stale: received {self.age(now):.2f} s ago, allowed are {timeout:.2f} s"
        return None if self.fault is None else f"{self.name}: {self.fault}"


class _Lidar(_Input[LaserScan]):
    """One lidar: its newest scan and where it sits; ``None``: where the policy's robot says."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.mount: tuple[Pose2D, bool] | None = None
        # Where the robot was, by odometry, when the scan came.
        self.seen_from: Pose2D | None = None
        self.frozen = FrozenScan()


class _Memory:
    """What a robot keeps of the past to make its triplets: the last frames, and where obstacles were."""

    def __init__(self, observation: ObservationSpec) -> None:
        self.observation = observation
        self.stack = FrameStack(observation)
        self._guide = guide_for(observation)
        self._pose: Pose2D | None = None

    def __call__(self, beams: FloatArray, goal: Pose2D, odometry: Odometry) -> Triplet:
        """The triplet of one control period; ``goal`` in the odometry frame."""
        frames = self.stack.push(beams[None])[0]
        pose = odometry.pose
        triplet = triplet_of(frames, goal, pose, odometry.twist)
        if self._guide is None:
            return triplet
        if self._pose is None or math.hypot(pose.x - self._pose.x, pose.y - self._pose.y) > _JUMP:
            self._guide.forget()
        self._pose = pose
        guidance = self._guide(frames[None, -1], triplet.goal[None], np.array([pose]))[0]
        return replace(triplet, guidance=guidance)


class _Pilot:
    """A policy with all that depends on it; replaced as a whole when the policy is."""

    def __init__(
        self, policy: Policy, config: NavigatorConfig, lidars: Sequence[_Lidar], memory: _Memory
    ) -> None:
        self.policy = policy
        self.memory = memory
        self.limits = config.limits_for(policy)
        self.limiter = config.limiter_for(policy)
        self.robot = config.robot or policy.robot
        self.guard = Guard(config.guard, self.robot)
        self.mounts = [lidar.mount or (policy.robot.lidar.mount, False) for lidar in lidars]
        self._converters = [ScanConverter(policy.observation, *mount) for mount in self.mounts]

    def observe(self, scans: Sequence[LaserScan], twist: Twist2D) -> FloatArray:
        """What the lidars see together, as ``(n,)`` policy beams."""
        beams = [convert(scan, twist) for convert, scan in zip(self._converters, scans, strict=True)]
        nearest: FloatArray = np.minimum.reduce(beams)
        return nearest

    def points(self, scans: Sequence[LaserScan], twist: Twist2D) -> DoubleArray:
        """``(P, 2)`` all that the lidars hit, in ``base_link``."""
        hits = [obstacle_points(scan, *mount, twist) for mount, scan in zip(self.mounts, scans, strict=True)]
        return hits[0] if len(hits) == 1 else np.concatenate(hits)


@dataclass
class GuardCounts:
    """How often the guard acted: ticks in all that it saw, of these slowed and stopped."""

    ticks: int = 0
    slowed: int = 0
    stopped: int = 0

    def add(self, action: Action) -> None:
        """One more tick."""
        self.ticks += 1
        self.slowed += action is Action.SLOWED
        self.stopped += action is Action.STOPPED

    @property
    def rate(self) -> float:
        """Share of ticks in which it acted."""
        return (self.slowed + self.stopped) / self.ticks if self.ticks else 0.0


class _View:
    """The inputs that one tick acts on."""

    def __init__(
        self,
        scans: Sequence[LaserScan],
        seen_from: Sequence[Pose2D | None],
        odometry: Odometry,
        pilot: _Pilot,
    ) -> None:
        self.scans, self.odometry = scans, odometry
        self._seen_from = seen_from
        self._pilot = pilot

    @cached_property
    def points(self) -> DoubleArray:
        """``(P, 2)`` all that the lidars hit, in ``base_link``."""
        return self._pilot.points(self.scans, self.odometry.twist)

    @cached_property
    def points_now(self) -> DoubleArray:
        """`points`, moved by what the robot has driven since each scan came."""
        here, twist = self.odometry.pose, self.odometry.twist
        if all(pose is None or pose == here for pose in self._seen_from):
            return self.points
        moved = []
        for scan, mount, there in zip(self.scans, self._pilot.mounts, self._seen_from, strict=True):
            points = obstacle_points(scan, *mount, twist)
            moved.append(points if there is None else transform_points(relative(there, here), points))
        return np.concatenate(moved)

    @property
    def sight(self) -> Sight:
        """The points, and where the lidars look."""
        mounted = zip(self.scans, self._pilot.mounts, strict=True)
        return Sight(self.points, [FieldOfView.of(scan, *mount) for scan, mount in mounted])


class Navigator:
    """Drives one robot with a policy; inputs may come from other threads than the ticks.

    Attributes:
        scan_names: what reasons call each lidar.
        resets: how often stamps ran backwards.
        guard_counts: how often the guard acted.
        no_policy_reason: said while there is no policy.

    Args:
        config: timeouts, tolerances and tighter limits.
        policy: may come later, through `swap_policy`.
        scan_name: what reasons call the scan, such as its topic; several for as many lidars.
        odometry_name, goal_name: what reasons call the other inputs.
    """

    def __init__(
        self,
        config: NavigatorConfig,
        policy: Policy | None = None,
        scan_name: str | Sequence[str] = "scan",
        odometry_name: str = "odom",
        goal_name: str = "goal_pose",
    ) -> None:
        self._config = config
        self._lock = threading.RLock()
        self.scan_names = (scan_name,) if isinstance(scan_name, str) else tuple(scan_name)
        self._lidars = [_Lidar(name) for name in self.scan_names]
        self._odometry: _Input[Odometry] = _Input(odometry_name)
        self._goal_name = goal_name
        self._route: Route | None = None
        self._route_origin = ORIGIN
        self._goal_fault: str | None = None
        self._target: Target | None = None
        self._arrival = config.arrival()
        self._disabled: str | None = None
        self._next: Policy | None = policy
        self._pilot: _Pilot | None = None
        self._restart = False
        self._sent = ZERO_TWIST
        self._recovery: Recovery | None = None
        self._blocked = False
        self.resets = 0
        self.guard_counts = GuardCounts()
        self.no_policy_reason = "no policy loaded yet"

    # Inputs

    def set_scan(self, scan: LaserScan, now: float, lidar: int = 0) -> str | None:
        """Take a lidar's newest scan; one that says nothing or is frozen is kept as a reason to stop.

        Returns that reason.
        """
        source = self._lidars[lidar]
        fault = None
        try:
            check_scan(scan)
        except InvalidInput as error:
            fault = str(error)
        with self._lock:
            fault = fault or source.frozen.problem(scan)
            last = source.value
            if last is not None and scan.stamp < last.stamp:
                self._restart = True
                self.resets += 1
            source.set(scan, fault, now)
            known = self._odometry.value is not None and self._odometry.fault is None
            source.seen_from = self._odometry.value.pose if known and self._odometry.value else None
        return fault

    def set_odometry(self, odometry: Odometry, now: float) -> None:
        """Take the newest odometry; one with a number that is not finite is a reason to stop."""
        finite = odometry.twist.is_finite() and all(math.isfinite(v) for v in odometry.pose)
        fault = None if finite else f"not finite: pose {tuple(odometry.pose)}, twist {tuple(odometry.twist)}"
        with self._lock:
            self._odometry.set(odometry, fault, now)
            if finite:
                for lidar in self._lidars:
                    lidar.frozen.moved(odometry.twist, now)

    def reject_scan(self, reason: str, now: float, lidar: int = 0) -> None:
        """A lidar's newest scan could not even be read."""
        with self._lock:
            self._lidars[lidar].set(None, reason, now)

    def reject_odometry(self, reason: str, now: float) -> None:
        """The newest odometry could not even be read."""
        with self._lock:
            self._odometry.set(None, reason, now)

    def set_mount(self, mount: Pose2D, flipped: bool = False, lidar: int = 0) -> None:
        """Where a lidar sits in ``base_link``; replaces what the policy's robot says."""
        source = self._lidars[lidar]
        with self._lock:
            if source.mount != (mount, flipped):
                source.mount = (mount, flipped)
                if self._pilot is not None and self._next is None:
                    self._next = self._pilot.policy
                self._restart = True

    # Goal

    def set_goal(self, goal: Pose2D) -> None:
        """A new goal, in the odometry frame."""
        try:
            self.set_route(Waypoints((goal,)))
        except InvalidInput as error:
            self.reject_goal(str(error))

    def set_route(self, route: Route, origin: Pose2D = ORIGIN) -> None:
        """A new way to go, in a frame whose origin lies here in the odometry frame."""
        with self._lock:
            last = self._route
            # A plan made anew to where the robot is going, or already is, is no other goal.
            if last is None or self._goal_fault is not None or _apart(last.end, route.end) > _SAME_GOAL:
                self._arrival.reset()
                self._try_again()
            self._route, self._route_origin, self._goal_fault, self._target = route, origin, None, None

    def place_route(self, origin: Pose2D) -> None:
        """The same way, in a frame whose origin now lies here in the odometry frame (a map's moves)."""
        with self._lock:
            self._route_origin, self._goal_fault = origin, None

    def reject_goal(self, reason: str) -> None:
        """There is a goal, but it cannot be used, or where it lies cannot be said."""
        with self._lock:
            self._goal_fault, self._target = reason, None

    def clear_goal(self) -> None:
        """Stop and wait for another goal."""
        with self._lock:
            self._route, self._goal_fault, self._target = None, None, None
            self._arrival.reset()
            self._try_again()

    # Policy and permission

    def swap_policy(self, policy: Policy) -> None:
        """Drive with this policy from the next tick on.

        The stacked frames are kept when both policies see the same, and started afresh otherwise.

        Raises:
            InvalidInput: a configured limit is wider than this policy's; the old one stays.
        """
        self._config.limits_for(policy)
        with self._lock:
            self._next = policy

    def reconfigure(self, config: NavigatorConfig) -> None:
        """Judge and limit by other values from the next tick on; the robot drives on meanwhile.

        Raises:
            InvalidInput: a limit is wider than the policy's; nothing is changed then.
        """
        with self._lock:
            policy = self.policy
            if policy is not None:
                config.limits_for(policy)
                self._next = policy
            self._config, self._arrival = config, config.arrival()

    def enable(self, enabled: bool, reason: str = "disabled by request") -> None:
        """Whether the robot may move at all."""
        with self._lock:
            self._disabled = None if enabled else reason
            self._try_again()

    def stopped(self) -> None:
        """Somebody else sent zero: the next command starts from rest."""
        with self._lock:
            self._restart = True
            self._stop(self._pilot)

    def _try_again(self) -> None:
        """What was given up is tried once more."""
        self._blocked = False
        if self._recovery is not None:
            self._recovery.reset()

    # What to do

    @property
    def policy(self) -> Policy | None:
        """The policy of the next tick."""
        with self._lock:
            if self._next is not None:
                return self._next
            return None if self._pilot is None else self._pilot.policy

    @property
    def period(self) -> float:
        """Seconds between two ticks."""
        policy = self.policy
        return self._config.control_period or (DEFAULT_PERIOD if policy is None else policy.control_period)

    @property
    def odometry(self) -> Odometry | None:
        """The newest usable odometry."""
        with self._lock:
            return None if self._odometry.fault else self._odometry.value

    @property
    def goal(self) -> Pose2D | None:
        """The route's end in the odometry frame; ``None`` without one, or where it cannot be said."""
        with self._lock:
            if self._route is None or self._goal_fault is not None:
                return None
            return self._placed(self._route.end)

    @property
    def target(self) -> Target | None:
        """Where the robot drives to now, in the odometry frame; on a route it is not the end."""
        with self._lock:
            return self._target

    @property
    def recoveries(self) -> int:
        """How many recovery behaviors were begun."""
        return 0 if self._recovery is None else self._recovery.count

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since the newest of each input arrived; inf before the first."""
        with self._lock:
            ages = {lidar.name: lidar.age(now) for lidar in self._lidars}
            ages[self._odometry.name] = self._odometry.age(now)
            return ages

    def input_problem(self, now: float) -> str | None:
        """Why the inputs must not be acted on now, or ``None``; cheap, for watchdogs."""
        with self._lock:
            scan_timeout, odometry_timeout = self._timeouts()
            problems = [lidar.problem(now, scan_timeout) for lidar in self._lidars]
            problems.append(self._odometry.problem(now, odometry_timeout))
            return "; ".join(p for p in problems if p) or None

    def stale_at(self) -> float:
        """When the first input becomes stale if nothing more arrives; inf while one is missing."""
        with self._lock:
            scan_timeout, odometry_timeout = self._timeouts()
            inputs = [(lidar.arrival, scan_timeout) for lidar in self._lidars]
            inputs.append((self._odometry.arrival, odometry_timeout))
            return min(math.inf if arrival is None else arrival + timeout for arrival, timeout in inputs)

    def warm_up(self) -> bool:
        """Think once without moving, so that the first drive is as quick as the others.

        Call it from the thread that will tick: torch sets itself up per thread, which takes some
        80 ms. Returns whether there was a policy to do it with.
        """
        policy = self.policy
        if policy is None:
            return False
        spec = policy.observation
        frames = np.full(spec.scan_shape, spec.range_max, dtype=np.float32)
        policy.act(triplet_of(frames, Pose2D(1.0, 0.0, 0.0), Pose2D(0.0, 0.0, 0.0), ZERO_TWIST))
        return True

    def tick(self, now: float) -> Command:
        """What to send to the robot now; call once per control period."""
        with self._lock:
            pilot = self._adopt()
            held = self._hold(pilot, now)
            if held is None and self._recovery is not None and self._recovery.gave_up is not None:
                held = Command(ZERO_TWIST, State.GAVE_UP, self._recovery.gave_up)
            if held is not None:
                # After a pause the old frames are not one control period apart any more.
                self._restart = True
                self._stop(pilot)
                return held
            assert pilot is not None
            view = self._view(pilot)
            self._target = target = self._aim(view)
            phase = self._phase(view, target)
            rescue = self._rescue(view, now) if phase is Phase.DRIVE else None
            if phase is not Phase.DRIVE or rescue is not None:
                self._restart = True
            elif self._restart:
                pilot.memory.stack.restart()
                self._restart = False
        # Outside the lock: inputs keep arriving while the policy thinks.
        if rescue is not None:
            command = rescue
        elif phase is Phase.DRIVE:
            command = self._drive(pilot, view, target)
        else:
            command = self._at_goal(pilot, view, target, phase)
        if command.state in _MOVING:
            return self._guarded(pilot, view, command)
        self._stop(pilot)
        return command

    def _guarded(self, pilot: _Pilot, view: _View, command: Command) -> Command:
        """What guard and limits leave of a wanted command.

        The guard judges what the limits would make of it, for that is what the base would get. What the
        guard takes away is taken at once, whatever the limits: only commands to drive are shaped.
        """
        config, wanted = self._config, command.twist
        limited = pilot.limiter.preview(wanted, self.period)
        # A recovery never moves unguarded.
        if not config.guard.enabled and command.state is not State.RECOVERING:
            self._blocked = False
            self._sent = pilot.limiter(wanted, self.period)
            return replace(command, twist=self._sent)
        verdict = pilot.guard.check(
            limited,
            view.points_now if config.guard.base_shift_correction else view.points,
            measured=view.odometry.twist,
            previous=self._sent,
            period=self.period,
        )
        self.guard_counts.add(verdict.action)
        self._blocked = verdict.action is Action.STOPPED and command.state is State.DRIVING
        if verdict.action is Action.NONE:
            self._sent = pilot.limiter(wanted, self.period)
            return replace(command, twist=self._sent)
        pilot.limiter.reset(verdict.twist)
        self._sent = verdict.twist
        words = f"{command.reason}; guard: {verdict.action.value}, {verdict.clearance:.2f} m clear"
        return replace(command, twist=verdict.twist, reason=words, guard=verdict.action)

    def _rescue(self, view: _View, now: float) -> Command | None:
        """What a recovery wants, where the robot gets nowhere; ``None``: the policy drives."""
        assert self._recovery is not None
        assert self._route is not None
        end = relative(self._placed(self._route.end), view.odometry.pose)
        was = self._recovery.gave_up
        twist = self._recovery.update(
            now, view.odometry.pose, math.hypot(end.x, end.y), view.sight, self._blocked
        )
        if self._recovery.gave_up != was:
            return Command(ZERO_TWIST, State.GAVE_UP, self._recovery.gave_up or "")
        return None if twist is None else Command(twist, State.RECOVERING, self._recovery.words)

    def _view(self, pilot: _Pilot) -> _View:
        odometry = self._odometry.value
        scans = [lidar.value for lidar in self._lidars if lidar.value is not None]
        assert odometry is not None
        assert len(scans) == len(self._lidars)
        return _View(scans, [lidar.seen_from for lidar in self._lidars], odometry, pilot)

    def _aim(self, view: _View) -> Target:
        """The route's target now, in the odometry frame."""
        assert self._route is not None
        robot = relative(view.odometry.pose, self._route_origin)
        points = view.points if isinstance(self._route, PlannedPath) else None
        target = self._route.target(robot, points)
        return replace(target, pose=self._placed(target.pose))

    def _placed(self, pose: Pose2D) -> Pose2D:
        """A pose of the route in the odometry frame; not one bit is changed where both are one."""
        return pose if self._route_origin == ORIGIN else compose(self._route_origin, pose)

    def _phase(self, view: _View, target: Target) -> Phase:
        if not target.final:
            return Phase.DRIVE
        return self._arrival.judge(relative(target.pose, view.odometry.pose))

    def _at_goal(self, pilot: _Pilot, view: _View, target: Target, phase: Phase) -> Command:
        """Turn to the goal's heading, if there is one and the robot can; then it is reached."""
        local = relative(target.pose, view.odometry.pose)
        reached = f"goal reached, {math.hypot(local.x, local.y):.2f} m from it"
        if phase is Phase.ARRIVED:
            return Command(ZERO_TWIST, State.REACHED, reached)
        off = f"{math.degrees(abs(local.yaw)):.0f} deg off its heading"
        robot = pilot.robot
        if robot.kinematics == "car":
            return Command(ZERO_TWIST, State.REACHED, f"{reached}; {off}: a car cannot turn on the spot")
        if not turns_freely(robot.footprint, view.points):
            return Command(ZERO_TWIST, State.REACHED, f"{reached}; {off}: there is no room to turn")
        limits = pilot.limits
        wanted = Twist2D(0.0, 0.0, turn_rate(local.yaw, limits.wz, limits.awz))
        return Command(wanted, State.TURNING, f"turning to the goal's heading, {off}")

    def _stop(self, pilot: _Pilot | None) -> None:
        """Every stop is at once: no limit shapes it, and no ramp goes on from before it."""
        self._sent = ZERO_TWIST
        self._blocked = False
        if pilot is not None:
            pilot.limiter.reset()
        if self._recovery is not None:
            self._recovery.pause()

    def _drive(self, pilot: _Pilot, view: _View, target: Target) -> Command:
        odometry = view.odometry
        robot = pilot.policy.robot
        triplet = pilot.memory(pilot.observe(view.scans, odometry.twist), target.pose, odometry)
        try:
            action = executed_actions(pilot.policy.act(triplet), robot)
        except InvalidInput as error:
            return Command(ZERO_TWIST, State.FAILED, f"policy {pilot.policy.identity}: {error}", triplet)
        wanted = Twist2D(*map(float, commands(action, robot)))
        return Command(wanted, State.DRIVING, target.words, triplet)

    def _hold(self, pilot: _Pilot | None, now: float) -> Command | None:
        """The command of a robot that must stand still, in order of what the user should mend first."""
        if self._disabled is not None:
            return Command(ZERO_TWIST, State.DISABLED, self._disabled)
        if pilot is None:
            return Command(ZERO_TWIST, State.NO_POLICY, self.no_policy_reason)
        problem = self.input_problem(now)
        if self._goal_fault is not None:
            fault = f"{self._goal_name}: {self._goal_fault}"
            return Command(ZERO_TWIST, State.BAD_INPUT, fault if problem is None else f"{fault}; {problem}")
        if self._route is None:
            reason = "waiting for a goal" if problem is None else f"waiting for a goal; {problem}"
            return Command(ZERO_TWIST, State.NO_GOAL, reason)
        if problem is not None:
            return Command(ZERO_TWIST, State.BAD_INPUT, problem)
        return None

    def _adopt(self) -> _Pilot | None:
        """Make the announced policy the one that drives."""
        if self._next is not None:
            policy, old = self._next, self._pilot
            self._next = None
            memory = old.memory if old is not None else None
            if memory is None or memory.observation != policy.observation:
                memory = _Memory(policy.observation)
            self._pilot = _Pilot(policy, self._config, self._lidars, memory)
            if self._recovery is None or self._recovery.config != self._config.recovery:
                self._recovery = Recovery(self._config.recovery, self._pilot.robot)
            if old is not None:
                # The robot moves on with the speed it has.
                self._pilot.limiter.reset(self._sent)
        return self._pilot

    def _timeouts(self) -> tuple[float, float]:
        default = STALE_PERIODS * self.period
        return self._config.scan_timeout or default, self._config.odometry_timeout or default


def _apart(a: Pose2D, b: Pose2D) -> float:
    """How far two goals differ, metres or radians, whichever is more."""
    return max(math.hypot(b.x - a.x, b.y - a.y), abs(wrap_angle(b.yaw - a.yaw)))
