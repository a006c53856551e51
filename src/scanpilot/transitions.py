"""A stamped stream, live or from a bag, to transitions: one implementation for both.

Who has a robot's messages (a node, `scanpilot.bags`) hands them over as events, each with its stamp;
what comes out depends on the stamps alone, not on when or in which process an event arrived, so that
a bag gives what a live listener got. Three steps, each a class:

* `Assembler`: events to `Step`s of one control period each, by the observation and command code of the
  robot itself; cuts the stream where it has gaps, teleports or clock jumps;
* `Labeller`: steps to `Episode`s: gives each a goal (the one that was set, or in hindsight a place the
  robot went to), judges it by the task's own code, and says where it ends;
* `TransitionMaker`: both.

State and successor are taken at the ends of the period from the newest scan and odometry by stamp; the
action is what was commanded in between. Knows no file format, no ROS and no network.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from scanpilot import command
from scanpilot.geometry import wrap_angle
from scanpilot.observation import (
    FrameStack,
    ObservationSpec,
    ScanConverter,
    check_scan,
    obstacle_points,
    triplets_of,
    with_guidance,
)
from scanpilot.robot import Footprint, RobotSpec
from scanpilot.task import TaskConfig, judge, suited_to
from scanpilot.types import (
    ORIGIN,
    BoolArray,
    DoubleArray,
    FloatArray,
    InvalidInput,
    LaserScan,
    Odometry,
    Pose2D,
    StepResult,
    Triplet,
    Twist2D,
)


@dataclass(frozen=True)
class Commanded:
    """A velocity command that was sent to the robot, m/s and rad/s, at ``stamp`` seconds."""

    stamp: float
    twist: Twist2D


@dataclass(frozen=True)
class GoalSet:
    """From ``stamp`` on the robot was to go to this pose in the odometry frame; ``None``: nowhere."""

    stamp: float
    pose: Pose2D | None


@dataclass(frozen=True)
class Touched:
    """What a bumper or a simulator says: whether the robot touched something at ``stamp``."""

    stamp: float
    touching: bool


Event = LaserScan | Odometry | Commanded | GoalSet | Touched
# Of events with the same stamp, so that what comes out does not depend on which arrived first.
_RANK: dict[type, int] = {Odometry: 0, LaserScan: 1, GoalSet: 2, Touched: 3, Commanded: 4}


class ActionSource(IntEnum):
    """Where an executed action is known from."""

    COMMAND = 0
    ODOMETRY = 1


class GoalSource(IntEnum):
    """Where an episode's goal is from: it was set; the robot later went there; it lies beyond the end."""

    TOPIC = 0
    HINDSIGHT = 1
    AHEAD = 2


class ContactSource(IntEnum):
    """Who says that a step ended in contact."""

    NONE = 0
    TOPIC = 1
    STALL = 2
    SCAN = 3


# As the navigator's: what a live robot would not have acted on is not learned from either.
MAX_AGE_PERIODS = 1.75
# Stamps are sums of seconds and nanoseconds in float64: a microsecond is more than their rounding.
_SAME_TIME = 1e-6
_MOST_TIMES = 20
# m/s, m/s and rad/s that odometry and joysticks show at rest.
_NOISE = np.array([0.03, 0.05, 0.1])
# Metres, radians and their speeds beyond which a number is damage, as one that is none at all.
_ABSURD = 1e6


@dataclass(frozen=True)
class TransitionConfig:
    """How a stream is cut into steps and episodes.

    Attributes:
        max_age: seconds; a scan or odometry older than this is a gap. ``None``: 1.75 control periods.
        command_timeout: seconds for which a command holds if no other one follows.
        reordering: seconds by which an event may come later than others with a newer stamp.
        contacts: who may say that the robot touched something.
        stall: seconds of commanded forward motion without any motion that count as contact.
        jump: metres, and radians, that odometry may move beyond what the robot's limits allow.
        goals: ``topic``: only goals that were set; ``hindsight``: only places the robot later went to;
            ``auto``: hindsight where no goal was set; ``both``: both.
        hindsight_steps: shortest and longest time to a hindsight goal, in control periods.
        seed: of the choice of hindsight goals.
    """

    max_age: float | None = None
    command_timeout: float = 0.5
    reordering: float = 0.5
    contacts: tuple[Literal["topic", "stall", "scan"], ...] = ("topic", "stall", "scan")
    stall: float = 0.8
    jump: float = 0.5
    goals: Literal["auto", "topic", "hindsight", "both"] = "auto"
    hindsight_steps: tuple[int, int] = (10, 100)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_age", "command_timeout", "reordering", "stall", "jump"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{name} is {value}, expected a positive number")
        if not 0 < self.hindsight_steps[0] <= self.hindsight_steps[1]:
            raise ValueError(f"hindsight_steps {self.hindsight_steps}, expected 0 < shortest <= longest")


@dataclass(frozen=True)
class State:
    """The robot at the border of two control periods.

    Attributes:
        number: of this border in the whole stream; those of one segment follow one another.
        first: number of its segment's first.
        stamp: seconds.
        frames: ``(k, n)`` as the policy sees them.
        pose: in the odometry frame.
        speed: in ``base_link``.
        goal: that was set, in the odometry frame.
        points: ``(P, 2)`` all that the scan hit, in ``base_link``.
        clearance: metres from the footprint to the nearest thing the scan saw; inf if it saw nothing.
        touching: whether the robot was in contact.
    """

    number: int
    first: int
    stamp: float
    frames: FloatArray
    pose: Pose2D
    speed: Twist2D
    goal: Pose2D | None
    points: DoubleArray
    clearance: float
    touching: bool


@dataclass(frozen=True)
class Step:
    """One control period of a robot, without a goal or a reward yet.

    Attributes:
        segment: number of the unbroken stretch it belongs to.
        before, after: the states at its ends.
        action: ``(3,)`` executed, in action units.
        action_source: where that is known from.
        contact: who says that the robot touched something during it.
    """

    segment: int
    before: State
    after: State
    action: FloatArray
    action_source: ActionSource
    contact: ContactSource


@dataclass(frozen=True)
class Episode:
    """L transitions that follow one another, on the way to one goal.

    Attributes:
        steps: what they were made from.
        goal: in the odometry frame.
        goal_source: where it is from.
        states: ``(L, ...)``.
        result: ``(L, ...)``; only the last one may be terminated or truncated.
    """

    steps: Sequence[Step]
    goal: Pose2D
    goal_source: GoalSource
    states: Triplet
    result: StepResult

    def __len__(self) -> int:
        """L."""
        return len(self.steps)


class Assembler:
    """Events of one robot to `Step`s.

    Args:
        robot: its limits, footprint and control period.
        observation: what the policy sees.
        mount: pose of the lidar in ``base_link``.
        flipped: the lidar hangs upside down.
        config: timeouts.

    Attributes:
        cuts: how often the stream was cut or an event left out, by reason.
        cut_times: stamp and reason of the first few cuts.
    """

    def __init__(
        self,
        robot: RobotSpec,
        observation: ObservationSpec,
        mount: Pose2D = ORIGIN,
        flipped: bool = False,
        config: TransitionConfig | None = None,
    ) -> None:
        self._robot, self._config = robot, config or TransitionConfig()
        self._period = robot.control_period
        self._max_age = self._config.max_age or MAX_AGE_PERIODS * self._period
        self._convert = ScanConverter(observation, mount, flipped)
        self._mount, self._flipped = mount, flipped
        self._stack = FrameStack(observation)
        self.cuts: collections.Counter[str] = collections.Counter()
        self.cut_times: list[tuple[float, str]] = []
        self._waiting: list[tuple[float, int, int, Event]] = []
        self._arrivals = itertools.count()
        self._newest = -math.inf
        self._number, self._segment = 0, -1
        self._forget()

    def _forget(self) -> None:
        """Everything known about now: time begins anew."""
        self._newest, self._reached = -math.inf, -math.inf
        self._newest_of: dict[type, float] = {}
        self._scan: LaserScan | None = None
        self._odometry: Odometry | None = None
        self._commands: list[Commanded] = []
        self._moved: list[Odometry] = []
        self._goal: Pose2D | None = None
        self._touching = self._touched = False
        self._stalled = 0.0
        self._broken: str | None = None
        self._state: State | None = None
        self._usable_since: float | None = None

    # Events

    def add(self, event: Event) -> list[Step]:
        """Take one event; returns the steps that are complete now, usually none."""
        if not math.isfinite(event.stamp):
            self._note(event.stamp, "stamp is not a number")
            return []
        done: list[Step] = []
        if isinstance(event, (LaserScan, Odometry)):
            newest = self._newest_of.get(type(event), -math.inf)
            if event.stamp < newest - self._config.reordering:
                # A looped bag, a reset simulator: what waits belongs to the time before.
                done = self.finish()
                self._note(event.stamp, "clock jumped back")
                self._forget()
            self._newest_of[type(event)] = max(event.stamp, self._newest_of.get(type(event), -math.inf))
            self._newest = max(self._newest, event.stamp)
        if event.stamp < self._reached:
            self._note(event.stamp, "came too late")
            return done
        heapq.heappush(self._waiting, (event.stamp, _RANK[type(event)], next(self._arrivals), event))
        while self._waiting and self._waiting[0][0] <= self._newest - self._config.reordering:
            done += self._take(heapq.heappop(self._waiting)[3])
        return done

    def finish(self) -> list[Step]:
        """The steps of what still waits: the stream is over."""
        done: list[Step] = []
        while self._waiting:
            event = heapq.heappop(self._waiting)[3]
            # Commands may be stamped after the last sensor reading, without end.
            if event.stamp <= self._newest + self._config.reordering:
                done += self._take(event)
        if self._state is not None and self._newest >= self._state.stamp + self._period - _SAME_TIME:
            done += self._close()
        self._state = None
        return done

    def _take(self, event: Event) -> list[Step]:
        """One event, in the order of stamps."""
        self._reached = event.stamp
        done = self._close_until(event.stamp)
        if isinstance(event, LaserScan):
            self._scan = event
        elif isinstance(event, Odometry):
            self._take_odometry(event)
        elif isinstance(event, Commanded):
            if all(abs(v) < _ABSURD for v in event.twist):
                self._commands.append(event)
        elif isinstance(event, GoalSet):
            self._goal = event.pose
        else:
            self._touching = event.touching
            self._touched |= event.touching
        if self._state is None:
            self._commands, self._moved = self._commands[-1:], []
            self._begin(event)
        return done

    def _take_odometry(self, odometry: Odometry) -> None:
        if not all(abs(v) < _ABSURD for v in (*odometry.pose, *odometry.twist)):
            self._note(odometry.stamp, "odometry is not a usable number")
            return
        last = self._odometry
        if last is not None and self._broken is None and self._jumped(last, odometry):
            self._broken = "odometry jumped"
        self._odometry = odometry
        self._moved.append(odometry)

    def _jumped(self, last: Odometry, now: Odometry) -> bool:
        limits, elapsed = self._robot.limits, now.stamp - last.stamp
        distance = math.hypot(now.pose.x - last.pose.x, now.pose.y - last.pose.y)
        turn = abs(wrap_angle(now.pose.yaw - last.pose.yaw))
        # Twice the limits: drivers' stamps jitter.
        return distance > 2.0 * math.hypot(limits.vx, limits.vy) * elapsed + self._config.jump or turn > min(
            2.0 * limits.wz * elapsed + self._config.jump, math.pi
        )

    # Periods

    def _begin(self, event: Event) -> None:
        """Start a segment, at a command where there are any: periods then hold one command each."""
        now = event.stamp
        if self._broken is not None:
            self._broken = None
            self._usable_since = None
        if self._input_fault(now) is not None:
            self._usable_since = None
            return
        if self._usable_since is None:
            self._usable_since = now
        if isinstance(event, Commanded) or now > self._usable_since + self._config.command_timeout:
            self._segment += 1
            self._first = self._number
            self._stack.restart()
            self._stalled = 0.0
            self._state = self._look(now)
            if self._state is None:
                self._usable_since = None
            self._start_period()

    def _start_period(self) -> None:
        """Forget what lies before this moment, all but the command in force."""
        self._commands = self._commands[-1:]
        self._moved = []
        self._touched = self._touching

    def _close_until(self, stamp: float) -> list[Step]:
        done: list[Step] = []
        while self._state is not None and self._end_of_period() < stamp - _SAME_TIME:
            done += self._close()
        return done

    def _end_of_period(self) -> float:
        """From the segment's first border on, so that rounding does not add up."""
        assert self._state is not None
        return self._origin + (self._state.number - self._first + 1) * self._period

    def _close(self) -> list[Step]:
        """End the current period: its step, or none if the stream breaks here."""
        before, end = self._state, self._end_of_period()
        assert before is not None
        fault = self._broken or self._input_fault(end)
        after = None if fault else self._look(end)
        if after is None:
            if fault:
                self._note(end, fault)
            self._state, self._usable_since = None, None
            return []
        velocity, source = self._executed(before.stamp, end)
        fault = self._no_action(velocity, before.speed, after.speed)
        if fault:
            self._note(end, fault)
            self._state, self._usable_since = None, None
            return []
        # A base that is told to go faster than it can goes as fast as it can.
        action = command.actions_of(velocity, self._robot)
        contact = self._contact(before, after, velocity)
        self._start_period()
        self._state = after
        return [Step(self._segment, before, after, action, source, contact)]

    def _input_fault(self, now: float) -> str | None:
        for name, value in (("scan", self._scan), ("odometry", self._odometry)):
            if value is None or value.stamp < now - self._max_age:
                return f"gap in {name}"
        return None

    def _look(self, now: float) -> State | None:
        """What the policy would see now; ``None``, noted, where it would refuse to look."""
        assert self._scan is not None
        assert self._odometry is not None
        try:
            check_scan(self._scan)
            beams = self._convert(self._scan, self._odometry.twist)
            frames = self._stack.push(beams[None])[0]
        except InvalidInput:
            self._note(now, "scan without any finite range")
            return None
        if self._number == self._first:
            self._origin = now
        points = obstacle_points(self._scan, self._mount, self._flipped, self._odometry.twist)
        state = State(
            self._number,
            self._first,
            now,
            frames,
            self._odometry.pose,
            self._odometry.twist,
            self._goal,
            points,
            self._clearance(points),
            self._touching,
        )
        self._number += 1
        return state

    def _clearance(self, points: DoubleArray) -> float:
        if not len(points):
            return math.inf
        return float(signed_distance(self._robot.footprint, points[:, 0], points[:, 1]).min())

    def _executed(self, begin: float, end: float) -> tuple[DoubleArray, ActionSource]:
        """Mean commanded velocity of a period; the odometry's where commands do not cover it."""
        total, covered = np.zeros(3), 0.0
        for i, sent in enumerate(self._commands):
            until = self._commands[i + 1].stamp if i + 1 < len(self._commands) else end
            until = min(until, sent.stamp + self._config.command_timeout, end)
            held = until - max(sent.stamp, begin)
            if held > 0.0:
                total += held * np.array(sent.twist)
                covered += held
        if covered > 0.9 * (end - begin):
            return total / covered, ActionSource.COMMAND
        assert self._odometry is not None
        seen: DoubleArray = np.array([o.twist for o in self._moved or [self._odometry]])
        return seen.mean(axis=0), ActionSource.ODOMETRY

    def _no_action(self, velocity: DoubleArray, *measured: Twist2D) -> str | None:
        """Why no action stands for a period: up to some noise, none goes back or faster than the limits."""
        limits = self._robot.limits
        if velocity[0] < -_NOISE[0]:
            return "driven backwards"
        if abs(velocity[1]) > _NOISE[1] and limits.vy == 0.0:
            return "driven sideways, which this robot cannot"
        fastest = 1.1 * np.array([limits.vx, limits.vy, limits.wz]) + _NOISE
        if (np.abs(measured) > fastest).any():
            return "faster than the robot's limits"
        return None

    def _contact(self, before: State, after: State, velocity: DoubleArray) -> ContactSource:
        asked = self._config.contacts
        if "topic" in asked and self._touched:
            return ContactSource.TOPIC
        standing = abs(after.speed.vx) < 0.02 and abs(after.speed.wz) < 0.05
        pushing = velocity[0] > max(0.05, 0.1 * self._robot.limits.vx)
        self._stalled = self._stalled + self._period if pushing and standing else 0.0
        if "stall" in asked and self._stalled >= self._config.stall:
            return ContactSource.STALL
        # Something that is always inside the footprint is the robot's own body.
        if "scan" in asked and after.clearance <= 0.0 < before.clearance:
            return ContactSource.SCAN
        return ContactSource.NONE

    def _note(self, stamp: float, reason: str) -> None:
        self.cuts[reason] += 1
        if len(self.cut_times) < _MOST_TIMES:
            self.cut_times.append((stamp, reason))


def signed_distance(footprint: Footprint, x: DoubleArray, y: DoubleArray) -> DoubleArray:
    """Metres from points in ``base_link`` to a footprint's outline, negative inside."""
    if footprint.polygon is None:
        assert footprint.radius is not None
        return np.hypot(x, y) - footprint.radius
    corners = np.array(footprint.polygon)
    ahead = np.roll(corners, -1, axis=0) - corners
    length = np.hypot(ahead[:, 0], ahead[:, 1])
    dx, dy = x[:, None] - corners[:, 0], y[:, None] - corners[:, 1]
    along = np.clip((dx * ahead[:, 0] + dy * ahead[:, 1]) / length**2, 0.0, 1.0)
    near: DoubleArray = np.hypot(dx - along * ahead[:, 0], dy - along * ahead[:, 1]).min(axis=1)
    inside = (ahead[:, 0] * dy - ahead[:, 1] * dx > 0.0).all(axis=1)
    signed: DoubleArray = np.where(inside, -near, near)
    return signed


class Labeller:
    """Steps of one robot to `Episode`s.

    Steps wait until their segment ends, the robot touches something, or as many wait as the task's
    time limit allows: memory is bounded, and so is how late an episode comes.

    Args:
        observation: what the policy sees.
        task: judges.
        config: which goals.
        seed_offset: tells robots apart whose streams begin at the same stamp.
    """

    def __init__(
        self,
        observation: ObservationSpec,
        task: TaskConfig,
        config: TransitionConfig | None = None,
        seed_offset: int = 0,
    ) -> None:
        self._observation, self._task, self._config = observation, task, config or TransitionConfig()
        self._seed_offset = seed_offset
        self._waiting: list[Step] = []
        self._in_contact = False

    def add(self, step: Step) -> list[Episode]:
        """Take one step; returns the episodes that are complete now, usually none."""
        done: list[Episode] = []
        if self._waiting and self._waiting[-1].segment != step.segment:
            done = self.finish()
            self._in_contact = False
        if step.before.touching or (self._in_contact and step.contact):
            # It begins in contact: nothing to be learned about how to avoid it.
            return done + self.finish()
        self._waiting.append(step)
        self._in_contact = bool(step.contact)
        if step.contact:
            done += self.finish()
        elif len(self._waiting) >= self._task.time_limit:
            done += self._label(more=True)
        return done

    def finish(self) -> list[Episode]:
        """The episodes of what waits: the segment or the stream is over."""
        return self._label(more=False)

    def _label(self, more: bool) -> list[Episode]:
        """The episodes of what waits; where ``more`` follows, its end may wait on for a goal."""
        steps, self._waiting = self._waiting, []
        done: list[Episode] = []
        for begin, end, goal in _stretches(steps, self._task.goal_radius):
            stretch = steps[begin:end]
            if goal is not None and self._config.goals != "hindsight":
                done.append(self._judged(stretch, goal, GoalSource.TOPIC))
            if self._config.goals in ("hindsight", "both") or (goal is None and self._config.goals == "auto"):
                found, used = self._in_hindsight(stretch)
                done += found
                left = stretch[used:]
                # Not so long that it could never be more.
                if more and end == len(steps) and goal is None and 2 * len(left) < self._task.time_limit:
                    self._waiting = list(left)
                else:
                    done += self._last(left)
        return done

    def _in_hindsight(self, steps: Sequence[Step]) -> tuple[list[Episode], int]:
        """Episodes towards places where the robot was later, and how many steps they take up."""
        stamp = round(1e6 * steps[0].before.stamp)
        rng = np.random.default_rng((self._config.seed, self._seed_offset, abs(stamp)))
        shortest, longest = self._config.hindsight_steps
        places = np.array([step.after.pose for step in steps])
        done: list[Episode] = []
        begin = 0
        while begin < len(steps):
            start = steps[begin].before.pose
            away = np.hypot(places[begin:, 0] - start.x, places[begin:, 1] - start.y)
            far = np.flatnonzero(away >= 2.0 * self._task.goal_radius)
            if not far.size:
                break
            last = begin + max(int(rng.integers(shortest, longest + 1)), int(far[0]))
            last = min(last, len(steps) - 1)
            if away[last - begin] < 2.0 * self._task.goal_radius:
                # It came back: go where it was farthest instead.
                last = begin + int(far[0])
            goal = steps[last].after.pose
            done.append(self._judged(steps[begin : last + 1], goal, GoalSource.HINDSIGHT))
            begin += len(done[-1])
        if steps[-1].contact:
            # What led to a contact is worth seeing on the way to somewhere beyond it as well.
            tail = steps[max(0, len(steps) - shortest) :]
            return [*done, self._judged(tail, _beyond(tail[-1]), GoalSource.AHEAD)], len(steps)
        return done, begin

    def _last(self, steps: Sequence[Step]) -> list[Episode]:
        """What is left of a stretch and leads nowhere: towards a place ahead, if the robot did anything."""
        if not steps or not _moves(steps):
            return []
        return [self._judged(steps, _beyond(steps[-1]), GoalSource.AHEAD)]

    def _judged(self, steps: Sequence[Step], goal: Pose2D, source: GoalSource) -> Episode:
        """Steps on the way to a goal, up to where the task says that it ends; else truncated."""

        def poses(states: Sequence[State]) -> DoubleArray:
            return np.array([s.pose for s in states])

        before, after = [s.before for s in steps], [s.after for s in steps]
        target = np.array(goal)
        distance = np.hypot(*(poses(before)[:, :2] - target[:2]).T)
        next_distance = np.hypot(*(poses(after)[:, :2] - target[:2]).T)
        clearance = np.array([s.clearance for s in after])
        contact: BoolArray = np.array([bool(s.contact) for s in steps])
        taken = np.arange(1, len(steps) + 1)
        outcome = judge(distance, next_distance, clearance, contact, taken, self._task)
        ends = np.flatnonzero(outcome.terminated | outcome.truncated)
        length = int(ends[0]) + 1 if ends.size else len(steps)
        truncated = outcome.truncated[:length].copy()
        truncated[-1] |= not outcome.terminated[length - 1]

        # One state's successor is the next one's beginning.
        states = [before[0], *after[:length]]
        goals = np.broadcast_to(target, (length + 1, 3))
        speeds = np.array([s.speed for s in states])
        seen = triplets_of(np.stack([s.frames for s in states]), goals, poses(states), speeds)
        seen = with_guidance(seen, self._observation, poses(states))
        result = StepResult(
            triplets=seen[1:],
            actions=np.stack([s.action for s in steps[:length]]),
            rewards=outcome.rewards[:length],
            terminated=outcome.terminated[:length],
            truncated=truncated,
            reached=outcome.reached[:length],
            collided=outcome.collided[:length],
            info={"clearance": clearance[:length]},
        )
        return Episode(steps[:length], goal, source, seen[:-1], result)


def _stretches(steps: Sequence[Step], goal_radius: float) -> list[tuple[int, int, Pose2D | None]]:
    """Parts ``begin, end, goal`` with one goal each; a goal counts until it is reached."""
    parts: list[tuple[int, int, Pose2D | None]] = []
    reached: Pose2D | None = None
    for i, step in enumerate(steps):
        goal = step.before.goal
        if goal is not None and goal != reached:
            here = step.before.pose
            if math.hypot(goal.x - here.x, goal.y - here.y) < goal_radius:
                reached = goal
        if goal == reached:
            goal = None
        if parts and parts[-1][2] == goal:
            parts[-1] = (parts[-1][0], i + 1, goal)
        else:
            parts.append((i, i + 1, goal))
    return parts


def _moves(steps: Sequence[Step]) -> bool:
    """Whether the robot does anything; hours beside a charger teach nothing."""
    poses = np.array([step.after.pose for step in steps])
    turned = np.abs(wrap_angle(poses[:, 2] - poses[0, 2]))
    return bool(np.hypot(*(poses[:, :2] - poses[0, :2]).T).max() > 0.1 or turned.max() > 0.3)


def _beyond(step: Step) -> Pose2D:
    """Two metres ahead of where a robot touched something, or was when the stream broke off."""
    pose = step.after.pose
    return Pose2D(pose.x + 2.0 * math.cos(pose.yaw), pose.y + 2.0 * math.sin(pose.yaw), pose.yaw)


class TransitionMaker:
    """Events of one robot to episodes; see `Assembler` and `Labeller` for the arguments.

    The task is brought to the robot's steps by `task.suited_to`, as fleets do.
    """

    def __init__(
        self,
        robot: RobotSpec,
        observation: ObservationSpec,
        task: TaskConfig,
        mount: Pose2D = ORIGIN,
        flipped: bool = False,
        config: TransitionConfig | None = None,
        seed_offset: int = 0,
    ) -> None:
        self.assembler = Assembler(robot, observation, mount, flipped, config)
        self._labeller = Labeller(observation, suited_to(task, robot), config, seed_offset)

    def add(self, event: Event) -> list[Episode]:
        """Take one event; returns the episodes that are complete now, usually none."""
        return [e for step in self.assembler.add(event) for e in self._labeller.add(step)]

    def finish(self) -> list[Episode]:
        """The episodes of what still waits: the stream is over."""
        done = [e for step in self.assembler.finish() for e in self._labeller.add(step)]
        return done + self._labeller.finish()
