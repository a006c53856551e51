"""One robot's control tick: newest inputs, staleness, policy, limits -> velocity.

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
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from scanpilot.command import RateLimiter, commands, executed_actions, tightened
from scanpilot.geometry import relative
from scanpilot.observation import FrameStack, ObservationSpec, ScanConverter, check_scan, triplet_of
from scanpilot.robot import Limits
from scanpilot.types import ZERO_TWIST, InvalidInput, LaserScan, Odometry, Pose2D, Triplet, Twist2D

if TYPE_CHECKING:
    # Not at run time: a policy need not be a torch one.
    from scanpilot.policy import Policy

T = TypeVar("T")


class State(str, Enum):
    """What the robot is doing, as far as the navigator is concerned."""

    DRIVING = "driving"
    REACHED = "reached"
    NO_GOAL = "no goal"
    NO_POLICY = "no policy"
    BAD_INPUT = "bad input"
    DISABLED = "disabled"
    FAILED = "failed"


@dataclass(frozen=True)
class Command:
    """What to send to the robot now, and why.

    Attributes:
        twist: in ``base_link``; zero in every state but ``DRIVING``.
        state: what the robot is doing.
        reason: in words; names the input where one is at fault.
        triplet: what the policy saw, where it was asked.
    """

    twist: Twist2D
    state: State
    reason: str
    triplet: Triplet | None = None


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
        vx, vy, wz, ax, ay, awz: limits tighter than the policy's, m/s, rad/s, m/s^2, rad/s^2;
            ``None`` leaves one as it is.
    """

    control_period: float | None = None
    scan_timeout: float | None = None
    odometry_timeout: float | None = None
    goal_tolerance: float = 0.3
    goal_hysteresis: float = 0.15
    vx: float | None = None
    vy: float | None = None
    wz: float | None = None
    ax: float | None = None
    ay: float | None = None
    awz: float | None = None

    def __post_init__(self) -> None:
        for name in ("control_period", "scan_timeout", "odometry_timeout"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise InvalidInput(f"{name} is {value} s, expected more than 0")
        if not self.goal_tolerance > 0.0 or not self.goal_hysteresis >= 0.0:
            raise InvalidInput("goal_tolerance must be positive and goal_hysteresis not negative")

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


class _Pilot:
    """A policy with all that depends on it; replaced as a whole when the policy is."""

    def __init__(
        self, policy: Policy, config: NavigatorConfig, mount: Pose2D, flipped: bool, stack: FrameStack
    ) -> None:
        self.policy = policy
        self.stack = stack
        self.limits = config.limits_for(policy)
        self.limiter = RateLimiter(self.limits, policy.robot.turning_radius)
        self.convert = ScanConverter(policy.observation, mount, flipped)


class Navigator:
    """Drives one robot with a policy; inputs may come from other threads than the ticks.

    Args:
        config: timeouts, tolerances and tighter limits.
        policy: may come later, through `swap_policy`.
        scan_name, odometry_name, goal_name: what reasons call the inputs, such as topic names.
    """

    def __init__(
        self,
        config: NavigatorConfig,
        policy: Policy | None = None,
        scan_name: str = "scan",
        odometry_name: str = "odom",
        goal_name: str = "goal_pose",
    ) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._scan: _Input[LaserScan] = _Input(scan_name)
        self._odometry: _Input[Odometry] = _Input(odometry_name)
        self._goal_name = goal_name
        self._goal: Pose2D | None = None
        self._goal_fault: str | None = None
        self._reached = False
        self._disabled: str | None = None
        self._mount: Pose2D | None = None
        self._flipped = False
        self._next: Policy | None = policy
        self._pilot: _Pilot | None = None
        self._restart = False
        self._sent = ZERO_TWIST
        self.resets = 0
        self.no_policy_reason = "no policy loaded yet"

    # Inputs

    def set_scan(self, scan: LaserScan, now: float) -> None:
        """Take the newest scan; one without any finite range is kept as a reason to stop."""
        fault = None
        try:
            check_scan(scan)
        except InvalidInput as error:
            fault = str(error)
        with self._lock:
            last = self._scan.value
            if last is not None and scan.stamp < last.stamp:
                self._restart = True
                self.resets += 1
            self._scan.set(scan, fault, now)

    def set_odometry(self, odometry: Odometry, now: float) -> None:
        """Take the newest odometry; one with a number that is not finite is a reason to stop."""
        finite = odometry.twist.is_finite() and all(math.isfinite(v) for v in odometry.pose)
        fault = None if finite else f"not finite: pose {tuple(odometry.pose)}, twist {tuple(odometry.twist)}"
        with self._lock:
            self._odometry.set(odometry, fault, now)

    def reject_scan(self, reason: str, now: float) -> None:
        """The newest scan could not even be read."""
        with self._lock:
            self._scan.set(None, reason, now)

    def reject_odometry(self, reason: str, now: float) -> None:
        """The newest odometry could not even be read."""
        with self._lock:
            self._odometry.set(None, reason, now)

    def set_mount(self, mount: Pose2D, flipped: bool = False) -> None:
        """Where the lidar sits in ``base_link``; replaces what the policy's robot says."""
        with self._lock:
            if (self._mount, self._flipped) != (mount, flipped):
                self._mount, self._flipped = mount, flipped
                if self._pilot is not None and self._next is None:
                    self._next = self._pilot.policy
                self._restart = True

    # Goal

    def set_goal(self, goal: Pose2D) -> None:
        """A new goal, in the odometry frame."""
        with self._lock:
            self._reached = False
            self.move_goal(goal)

    def move_goal(self, goal: Pose2D) -> None:
        """The same goal, where it now lies in the odometry frame (which drifts against a map)."""
        if not all(math.isfinite(v) for v in goal):
            self.reject_goal(f"not finite: {tuple(goal)}")
            return
        with self._lock:
            self._goal, self._goal_fault = goal, None

    def reject_goal(self, reason: str) -> None:
        """There is a goal, but where it lies cannot be said."""
        with self._lock:
            self._goal, self._goal_fault = None, reason

    def clear_goal(self) -> None:
        """Stop and wait for another goal."""
        with self._lock:
            self._goal, self._goal_fault, self._reached = None, None, False

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

    def enable(self, enabled: bool, reason: str = "disabled by request") -> None:
        """Whether the robot may move at all."""
        with self._lock:
            self._disabled = None if enabled else reason

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
        """The goal in the odometry frame."""
        with self._lock:
            return self._goal

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since the newest of each input arrived; inf before the first."""
        with self._lock:
            return {i.name: i.age(now) for i in (self._scan, self._odometry)}

    def input_problem(self, now: float) -> str | None:
        """Why the inputs must not be acted on now, or ``None``; cheap, for watchdogs."""
        with self._lock:
            scan_timeout, odometry_timeout = self._timeouts()
            problems = (self._scan.problem(now, scan_timeout), self._odometry.problem(now, odometry_timeout))
            return "; ".join(p for p in problems if p) or None

    def stale_at(self) -> float:
        """When the first input becomes stale if nothing more arrives; inf while one is missing."""
        with self._lock:
            arrivals = (self._scan.arrival, self._odometry.arrival)
            return min(
                math.inf if arrival is None else arrival + timeout
                for arrival, timeout in zip(arrivals, self._timeouts(), strict=True)
            )

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
            if held is not None:
                # After a pause the old frames are not one control period apart any more.
                self._restart = True
                self._stop(pilot)
                return held
            assert pilot is not None
            scan, odometry, goal = self._scan.value, self._odometry.value, self._goal
            assert scan is not None
            assert odometry is not None
            assert goal is not None
            if self._restart:
                pilot.stack.restart()
                self._restart = False
        # Outside the lock: inputs keep arriving while the policy thinks.
        command = self._drive(pilot, scan, odometry, goal)
        if command.state is not State.DRIVING:
            self._stop(pilot)
        return command

    def _stop(self, pilot: _Pilot | None) -> None:
        self._sent = ZERO_TWIST
        if pilot is not None:
            pilot.limiter.reset()

    def _drive(self, pilot: _Pilot, scan: LaserScan, odometry: Odometry, goal: Pose2D) -> Command:
        try:
            frames = pilot.stack.push(pilot.convert(scan)[None])[0]
        except InvalidInput as error:
            return Command(ZERO_TWIST, State.BAD_INPUT, f"{self._scan.name}: {error}")
        triplet = triplet_of(frames, goal, odometry.pose, odometry.twist)
        robot = pilot.policy.robot
        try:
            action = executed_actions(pilot.policy.act(triplet), robot)
        except InvalidInput as error:
            return Command(ZERO_TWIST, State.FAILED, f"policy {pilot.policy.identity}: {error}", triplet)
        target = Twist2D(*map(float, commands(action, robot)))
        distance = math.hypot(triplet.goal[0], triplet.goal[1])
        self._sent = pilot.limiter(target, self.period)
        return Command(self._sent, State.DRIVING, f"goal is {distance:.1f} m away", triplet)

    def _hold(self, pilot: _Pilot | None, now: float) -> Command | None:
        """The command of a robot that must stand still, in order of what the user should mend first."""
        if self._disabled is not None:
            return Command(ZERO_TWIST, State.DISABLED, self._disabled)
        if pilot is None:
            return Command(ZERO_TWIST, State.NO_POLICY, self.no_policy_reason)
        problem = self.input_problem(now)
        if self._goal is None:
            if self._goal_fault is not None:
                fault = f"{self._goal_name}: {self._goal_fault}"
                return Command(
                    ZERO_TWIST, State.BAD_INPUT, fault if problem is None else f"{fault}; {problem}"
                )
            reason = "waiting for a goal" if problem is None else f"waiting for a goal; {problem}"
            return Command(ZERO_TWIST, State.NO_GOAL, reason)
        if problem is not None:
            return Command(ZERO_TWIST, State.BAD_INPUT, problem)
        return self._arrived()

    def _arrived(self) -> Command | None:
        assert self._goal is not None
        assert self._odometry.value is not None
        local = relative(self._goal, self._odometry.value.pose)
        distance = math.hypot(local.x, local.y)
        config = self._config
        radius = config.goal_tolerance + (config.goal_hysteresis if self._reached else 0.0)
        self._reached = distance < radius
        if not self._reached:
            return None
        return Command(ZERO_TWIST, State.REACHED, f"goal reached, {distance:.2f} m from it")

    def _adopt(self) -> _Pilot | None:
        """Make the announced policy the one that drives."""
        if self._next is not None:
            policy, old = self._next, self._pilot
            self._next = None
            mount = policy.robot.lidar.mount if self._mount is None else self._mount
            stack = _stack_for(policy.observation, old)
            self._pilot = _Pilot(policy, self._config, mount, self._flipped, stack)
            if old is not None:
                # The robot moves on with the speed it has.
                self._pilot.limiter.reset(self._sent)
        return self._pilot

    def _timeouts(self) -> tuple[float, float]:
        default = STALE_PERIODS * self.period
        return self._config.scan_timeout or default, self._config.odometry_timeout or default


def _stack_for(observation: ObservationSpec, old: _Pilot | None) -> FrameStack:
    if old is not None and old.policy.observation == observation:
        return old.stack
    return FrameStack(observation)
