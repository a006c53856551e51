"""What is in a bag and whether a policy can learn from it: `scanpilot bag info`.

Reads every message of the topics that matter once and judges what it sees: geometry and coding of the
scans, where the lidar sits, clocks, gaps, the frame of the odometry's velocity. What is odd is said in
words in `Description.problems`, with the option that overrides it where there is one.
"""

from __future__ import annotations

import collections
import math
from array import array
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from scanpilot import messages
from scanpilot.bags import BagError
from scanpilot.bags.files import Bag
from scanpilot.bags.stream import BOOL, BUMPER, HAZARDS, SCAN, Frames, Rigid, Roles, StreamConfig
from scanpilot.geometry import wrap_angle
from scanpilot.observation import ERROR_CODE_LIMIT
from scanpilot.types import DoubleArray, LaserScan, Pose2D

# Scans kept for the picture.
_DRAWN = 80
# Headers and recorder share a clock when they are this near, seconds: the rest is latency.
_SAME_CLOCK = 0.25
# Seconds: what the policy node of a robot with a period of 0.2 s would still act on.
MAX_AGE = 0.35
_MOST_VALUES = 10_000
# Messages on /tf after which only a few are looked at.
_TRANSFORMS = 2_000
# As in `scanpilot.transitions`.
_ABSURD = 1e6
_BASES = ("base_link", "base_footprint")


@dataclass(frozen=True)
class Mount:
    """Where the lidar sits.

    Attributes:
        pose: in the robot's frame.
        flipped: upside down.
        source: ``told``, ``tf`` or ``unknown``.
    """

    pose: Pose2D
    flipped: bool
    source: Literal["told", "tf", "unknown"]


@dataclass
class Description:
    """What `describe` found.

    Attributes:
        roles: which topic is what.
        mount: of the lidar on the scan topic.
        stream: how to read the bag's messages as a stream.
        usable_seconds: for which scan and odometry are there and fresh.
        problems: in words, the gravest first.
        document: all of it, for JSON.
        scans: some scans, spread over the bag, and the robot's path ``(N, 4)`` stamp, x, y, yaw, for
            drawing.
    """

    roles: Roles
    mount: Mount
    stream: StreamConfig
    usable_seconds: float
    problems: list[str]
    document: dict[str, Any]
    scans: list[LaserScan] = field(default_factory=list)
    path: DoubleArray = field(default_factory=lambda: np.zeros((0, 4)))
    speeds: DoubleArray = field(default_factory=lambda: np.zeros((0, 4)))
    commands: DoubleArray = field(default_factory=lambda: np.zeros((0, 3)))


def describe(bag: Bag, roles: Roles, mount: Pose2D | None = None, max_age: float = MAX_AGE) -> Description:
    """Look at every message that matters.

    Args:
        bag: opened.
        roles: which topic is what.
        mount: of the lidar, where the user knows better than the bag.
        max_age: seconds; scan and odometry older than this are a gap.
    """
    study = _Study(bag, roles)
    study.read()
    return study.describe(mount, max_age)


class _Stamps:
    """The stamps of one topic's headers, and when each was recorded; seconds."""

    def __init__(self) -> None:
        self._stamps, self._recorded = array("d"), array("d")

    def add(self, stamp: float, recorded: int) -> None:
        self._stamps.append(stamp)
        self._recorded.append(1e-9 * recorded)

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def stamps(self) -> DoubleArray:
        return np.array(self._stamps)

    @property
    def offsets(self) -> DoubleArray:
        """Header minus recorder."""
        recorded: DoubleArray = np.array(self._recorded)
        return self.stamps - recorded

    def backwards(self) -> int:
        """How often a stamp is before the one that came before."""
        return int((np.diff(self.stamps) < 0.0).sum())

    def intervals(self) -> dict[str, float]:
        """Median, shortest and longest interval, seconds; empty for a single stamp."""
        apart = np.diff(np.sort(self.stamps))
        if not apart.size:
            return {}
        median = float(np.median(apart))
        return {
            "hz": round(1.0 / median, 3) if median > 0.0 else 0.0,
            "median_interval": round(median, 4),
            "shortest_interval": round(float(apart.min()), 4),
            "longest_interval": round(float(apart.max()), 4),
        }

    def meaningless(self) -> bool:
        """Whether the headers hold no times: all zero, or one and the same."""
        stamps = self.stamps
        return bool(len(stamps) and (not stamps.any() or (len(stamps) > 2 and np.ptp(stamps) == 0.0)))


class _ScanStudy:
    """One topic's scans."""

    def __init__(self, stride: int) -> None:
        self.times, self.good_times = _Stamps(), array("d")
        self.geometries: collections.Counter[tuple[int, float, float, float, float]] = collections.Counter()
        self.frames: collections.Counter[str] = collections.Counter()
        self.repairs: collections.Counter[str] = collections.Counter()
        self.codes: collections.Counter[str] = collections.Counter()
        self.beyond: collections.Counter[float] = collections.Counter()
        self.error_codes: collections.Counter[float] = collections.Counter()
        self.readings = self.blind = self.count = self.refused = 0
        self.refusal = ""
        self.kept: list[LaserScan] = []
        self._stride = stride

    def add(self, message: Any, recorded: int) -> None:
        self.times.add(messages.seconds(message.header.stamp), recorded)
        self.frames[messages.frame_id(message.header.frame_id)] += 1
        try:
            scan = messages.scan_from(message)
        except ValueError as error:
            self.refused += 1
            self.refusal = str(error)
            return
        if self.count % self._stride == 0:
            self.kept.append(scan)
        self.count += 1
        self.repairs.update(scan.repairs)
        self._count_codes(scan)
        if np.isfinite(scan.ranges).any():
            self.good_times.append(scan.stamp)
        else:
            self.blind += 1

    def _count_codes(self, scan: LaserScan) -> None:
        r = scan.ranges
        geometry = (r.size, scan.angle_min, scan.angle_increment, scan.range_min, scan.range_max)
        self.geometries[geometry] += 1
        self.readings += r.size
        finite = np.isfinite(r)
        beyond = finite & (r >= np.float32(scan.range_max))
        code = finite & (r > 0.0) & (r <= ERROR_CODE_LIMIT)
        below = finite & (r > ERROR_CODE_LIMIT) & (r < np.float32(scan.range_min))
        for name, which in (
            ("inf", r == np.inf),
            ("minus_inf", r == -np.inf),
            ("nan", np.isnan(r)),
            ("zero", r == 0.0),
            ("negative", finite & (r < 0.0)),
            ("error_code", code),
            ("below_range_min", below),
            ("at_or_beyond_range_max", beyond),
        ):
            number = int(which.sum())
            if number:
                self.codes[name] += number
        for values, which in ((self.beyond, beyond), (self.error_codes, code)):
            if which.any() and len(values) < _MOST_VALUES:
                values.update(np.round(r[which].astype(np.float64), 3).tolist())

    def document(self) -> dict[str, Any]:
        if not self.geometries:
            return {}
        (beams, first, step, low, high), _ = self.geometries.most_common(1)[0]
        last = first + step * (beams - 1)
        return {
            "frame": self.frames.most_common(1)[0][0],
            "beams": beams,
            "beam_counts": sorted({g[0] for g in self.geometries}),
            "angle_min": round(first, 6),
            "angle_max": round(last, 6),
            "angle_increment": round(step, 8),
            "range_min": round(low, 4),
            "range_max": round(high, 4),
            "no_return": {name: round(n / self.readings, 4) for name, n in sorted(self.codes.items())},
            "error_codes": sorted(value for value, _ in self.error_codes.most_common(5)),
            "beyond_range_max": sorted(value for value, _ in self.beyond.most_common(5)),
            "largest": max(self.beyond, default=None),
            "blind_scans": round(self.blind / max(1, self.count), 4),
            "unreadable_scans": self.refused,
        }

    def problems(self, topic: str) -> list[str]:
        found = [f"{topic}: {n} scans: {repair}" for repair, n in self.repairs.items()]
        if self.refused:
            found.append(f"{topic}: {self.refused} scans cannot be used: {self.refusal}")
        if not self.geometries:
            return found
        (beams, first, step, low, high), most = self.geometries.most_common(1)[0]
        if len(self.geometries) > 1:
            counts = sorted({g[0] for g in self.geometries})
            what = f"{counts[0]} to {counts[-1]} beams" if len(counts) > 1 else "different headers"
            found.append(f"{topic}: geometry changes: {what}, {self.count - most} scans differ from most")
        span = abs(step) * (beams - 1)
        middle = wrap_angle(first + 0.5 * step * (beams - 1))
        if abs(span - 2.0 * math.pi) < 0.5 * abs(step):
            found.append(f"{topic}: the last of {beams} beams repeats the first one's direction")
        elif abs(middle) > max(2.0 * abs(step), math.radians(2.0)) and span < 2.0 * math.pi - 2.0 * abs(step):
            field = " to ".join(f"{math.degrees(v):.0f}" for v in (first, first + step * (beams - 1)))
            found.append(f"{topic}: the field of view is not symmetric in the lidar's frame: {field} degrees")
        if step < 0.0:
            found.append(f"{topic}: beams run clockwise")
        found += self._code_problems(topic, low, high)
        if self.blind:
            share = 100.0 * self.blind / self.count
            found.append(
                f"{topic}: {share:.0f} % of the scans hold no finite range; a policy stops at them, and they "
                "are gaps"
            )
        return found

    def _code_problems(self, topic: str, low: float, high: float) -> list[str]:
        def share(name: str) -> float:
            return 100.0 * self.codes[name] / self.readings

        def span(values: collections.Counter[float]) -> str:
            return f"{min(values):g} to {max(values):g} m" if values else ""

        found = []
        for name, text in (
            ("zero", "are zero, which is taken as no return"),
            ("nan", "are NaN, which is taken as no return"),
            ("inf", "are inf: no return"),
            ("minus_inf", f"are -inf: an obstacle nearer than {low:g} m"),
            ("negative", "are negative, which is taken as no return"),
            ("error_code", f"are error codes ({span(self.error_codes)}), which are taken as no return"),
            ("below_range_min", f"lie below range_min {low:g} m and are taken as obstacles"),
            (
                "at_or_beyond_range_max",
                f"are at or beyond range_max {high:g} m ({span(self.beyond)}): no return",
            ),
        ):
            if self.codes[name] and (name != "inf" or share(name) > 50.0):
                shown = f"{share(name):.0f} %" if share(name) >= 1.0 else f"{self.codes[name]}"
                found.append(f"{topic}: {shown} of the readings {text}")
        return found


class _OdometryStudy:
    def __init__(self) -> None:
        self.times = _Stamps()
        self.frames: collections.Counter[tuple[str, str]] = collections.Counter()
        self._rows = array("d")
        self.refused = 0
        self.refusal = ""

    def add(self, message: Any, recorded: int) -> None:
        self.times.add(messages.seconds(message.header.stamp), recorded)
        frame, child = messages.frame_id(message.header.frame_id), messages.frame_id(message.child_frame_id)
        self.frames[(frame, child)] += 1
        try:
            odometry = messages.odometry_from(message)
        except ValueError as error:
            self.refused += 1
            self.refusal = str(error)
            return
        if all(abs(v) < _ABSURD for v in (*odometry.pose, *odometry.twist)):
            self._rows.extend((odometry.stamp, *odometry.pose, *odometry.twist))
        else:
            self.refused += 1
            self.refusal = "not a usable number"

    @property
    def rows(self) -> DoubleArray:
        """(N, 7) stamp, x, y, yaw, vx, vy, wz as sent, in the order of stamps."""
        rows = np.array(self._rows).reshape(-1, 7)
        ordered: DoubleArray = rows[np.argsort(rows[:, 0], kind="stable")]
        return ordered


@dataclass(frozen=True)
class TwistCheck:
    """In which frame odometry states its velocity.

    Attributes:
        frame: ``child`` as REP-105 wants it, ``parent``, or ``unclear``.
        child_error, parent_error: m/s, median distance of the stated velocity from that of the poses, were
            it stated in the child's or in the parent's frame; nan where the robot did not move.
        samples: that were compared.
    """

    frame: Literal["child", "parent", "unclear"]
    child_error: float
    parent_error: float
    samples: int


def check_twist(rows: DoubleArray) -> TwistCheck:
    """Compare stated velocities with how poses change; ``(N, 7)`` as `_OdometryStudy.rows`."""
    if len(rows) < 3:
        return TwistCheck("unclear", math.nan, math.nan, 0)
    elapsed = np.diff(rows[:, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        world = np.diff(rows[:, 1:3], axis=0) / elapsed[:, None]
    turned = wrap_angle(np.diff(rows[:, 3]))
    yaw = rows[:-1, 3] + 0.5 * turned
    stated = 0.5 * (rows[:-1, 4:6] + rows[1:, 4:6])
    fast = (elapsed > 0.005) & (elapsed < 0.5) & (np.hypot(*stated.T) > 0.05)
    fast &= np.isfinite(world).all(axis=1) & (np.hypot(*world.T) < 10.0)
    # Where the robot looks along the frame's x axis both are the same.
    telling = fast & (np.abs(wrap_angle(yaw)) > 0.2)
    count = int(telling.sum())
    if not count:
        return TwistCheck("unclear", math.nan, math.nan, 0)
    c, s = np.cos(yaw), np.sin(yaw)
    body = np.stack((c * world[:, 0] + s * world[:, 1], c * world[:, 1] - s * world[:, 0]), axis=1)
    child = float(np.median(np.hypot(*(stated - body)[telling].T)))
    parent = float(np.median(np.hypot(*(stated - world)[telling].T)))
    frame: Literal["child", "parent", "unclear"] = "unclear"
    if count >= 8 and min(child, parent) < 0.5 * max(child, parent):
        frame = "child" if child < parent else "parent"
    return TwistCheck(frame, round(child, 4), round(parent, 4), count)


class _Study:
    """Everything that one reading of a bag collects."""

    def __init__(self, bag: Bag, roles: Roles) -> None:
        self._bag, self._roles = bag, roles
        self._scans: dict[str, _ScanStudy] = {}
        self._odometry = _OdometryStudy()
        self._frames = Frames()
        self._commands = array("d")
        self._goals: collections.Counter[str] = collections.Counter()
        self._clock_ticks = self._transforms = 0
        self._unreadable: collections.Counter[str] = collections.Counter()
        self._reasons: dict[str, str] = {}

    def read(self) -> None:
        scans = [t.name for t in self._bag.topics.values() if t.msgtype == SCAN and self._bag.knows(t)]
        for name in scans:
            self._scans[name] = _ScanStudy(max(1, self._bag.topics[name].count // _DRAWN))
        for raw in self._bag.messages({*self._roles.topics, *scans}):
            self._take(raw)

    def _take(self, raw: Any) -> None:
        if raw.topic in self._roles.tf:
            self._transforms += 1
            # Where moving frames are every time is of no interest, only which there are.
            if self._transforms > _TRANSFORMS and self._transforms % 50:
                return
        try:
            message = self._bag.decode(raw)
            if raw.topic in self._scans:
                self._scans[raw.topic].add(message, raw.time)
            else:
                self._take_other(self._roles.of(raw.topic), message, raw.time)
        except (BagError, AttributeError, TypeError, ValueError, OverflowError) as error:
            # Damaged bytes may decode to anything.
            self._unreadable[raw.topic] += 1
            self._reasons.setdefault(raw.topic, str(error))

    def _take_other(self, role: str | None, message: Any, recorded: int) -> None:
        if role == "odom":
            self._odometry.add(message, recorded)
        elif role == "cmd":
            twist = messages.twist_from(message)
            self._commands.extend((1e-9 * recorded, twist.vx, twist.wz))
        elif role == "goal":
            self._goals[messages.frame_id(message.header.frame_id)] += 1
        elif role == "clock":
            self._clock_ticks += 1
        elif role in ("tf", "tf_static"):
            self._frames.take(message, role == "tf_static")

    # Judging

    def describe(self, told: Pose2D | None, max_age: float) -> Description:
        roles, problems = self._roles, list(self._bag.problems)
        scan = self._scans.get(roles.scan) if roles.scan else None
        rows = self._odometry.rows
        missing = self._missing(scan, rows)
        twist = check_twist(rows)
        mount = self._mount(told, problems)
        stream, clock = self._clocks(scan, twist, problems)
        usable = self._usable(scan, rows, stream, max_age) if not missing else 0.0
        problems = missing + problems + self._choices() + self._scan_problems() + self._lateness()
        problems += self._odometry_problems(rows, twist) + self._gaps(scan, max_age)
        for topic, count in self._unreadable.items():
            problems.append(f"{topic}: {count} messages cannot be read: {self._reasons[topic]}")
        begin, end = self._bag.span
        document = {
            "bag": str(self._bag.path),
            "format": self._bag.format,
            "seconds": round(1e-9 * (end - begin), 3),
            "messages": sum(t.count for t in self._bag.topics.values()),
            "topics": self._topics(),
            "roles": {
                role: getattr(roles, role) for role in ("scan", "odom", "cmd", "goal", "contact", "clock")
            },
            "scan": {} if scan is None else {"topic": roles.scan, **scan.document(), "mount": _plain(mount)},
            "rates": self._rates(),
            "clock": clock,
            "odometry": self._odometry_document(rows, twist),
            "usable_seconds": round(usable, 2),
            "problems": problems,
        }
        return Description(
            roles=roles,
            mount=mount,
            stream=stream,
            usable_seconds=usable,
            problems=problems,
            document=document,
            scans=[] if scan is None else scan.kept,
            path=rows[:, :4],
            speeds=rows[:, [0, 4, 5, 6]],
            commands=np.array(self._commands).reshape(-1, 3),
        )

    def _missing(self, scan: _ScanStudy | None, rows: DoubleArray) -> list[str]:
        missing = []
        if scan is None or not scan.count:
            missing.append("no scan: nothing a policy could see (--scan TOPIC names one)")
        if not len(rows):
            missing.append("no odometry: where the robot was is not known (--odom TOPIC names it)")
        return missing

    def _choices(self) -> list[str]:
        found = []
        for role, names in self._roles.others:
            taken = getattr(self._roles, role)
            found.append(f"{taken} is taken as {role}, also there: {', '.join(names)} (--{role} overrides)")
        if not self._roles.cmd and len(self._odometry.times):
            found.append("no velocity commands: executed actions are taken from odometry")
        for topic in self._bag.topics.values():
            bumps = any(word in topic.name.lower() for word in ("bump", "hazard", "collision"))
            if bumps and topic.name != self._roles.contact and not self._bag.knows(topic):
                found.append(
                    f"{topic.name}: might tell contacts, but {topic.msgtype} is not defined in the bag"
                )
            elif bumps and not self._roles.contact and topic.msgtype not in (BOOL, HAZARDS, BUMPER):
                found.append(f"{topic.name}: might tell contacts, but {topic.msgtype} is not understood")
        return found

    def _scan_problems(self) -> list[str]:
        found = []
        for topic, study in self._scans.items():
            if topic == self._roles.scan:
                found += study.problems(topic)
                if len(study.frames) > 1:
                    found.append(f"{topic}: comes in several frames: {', '.join(study.frames)}")
            if back := study.times.backwards():
                found.append(f"{topic}: stamps run backwards {back} times")
        return found

    def _lateness(self) -> list[str]:
        """Scan topics that lag behind the others: their stamps are old when they come."""
        found = []
        for topic, study in self._scans.items():
            late = -float(np.median(study.times.offsets)) if len(study.times) else 0.0
            if 0.15 < late < 5.0:
                found.append(f"{topic}: comes {late:.2f} s after its stamp")
        return found

    def _mount(self, told: Pose2D | None, problems: list[str]) -> Mount:
        if told is not None:
            return Mount(told, False, "told")
        scan = self._scans.get(self._roles.scan or "")
        frame = scan.frames.most_common(1)[0][0] if scan and scan.frames else None
        if frame is None:
            return Mount(Pose2D(0.0, 0.0, 0.0), False, "unknown")
        bases = [child for (_, child), _ in self._odometry.frames.most_common(1)]
        bases += [base for base in _BASES if base not in bases]
        found = next((b for b in bases if b and (frame == b or self._frames.find(b, frame))), None)
        if found is None:
            problems.append(
                f"no transform says where the lidar's frame {frame!r} sits in the robot: taken from the "
                "robot's description (--mount X Y YAW overrides)"
            )
            return Mount(Pose2D(0.0, 0.0, 0.0), False, "unknown")
        rigid = self._frames.find(found, frame)
        if rigid is None:
            return Mount(Pose2D(0.0, 0.0, 0.0), False, "tf")
        problems += self._conflicts(found, frame)
        try:
            pose, flipped = messages.mount_of(rigid.translation[:2], rigid.rotation)
        except ValueError as error:
            problems.append(f"{frame}: {error} (--mount X Y YAW overrides)")
            return Mount(Pose2D(0.0, 0.0, 0.0), False, "unknown")
        if abs(wrap_angle(pose.yaw)) > 0.05 or flipped:
            turned = f"turned by {math.degrees(pose.yaw):.0f} degrees{', upside down' if flipped else ''}"
            problems.append(f"the lidar {frame!r} is {turned} in {found!r}: taken into account")
        return Mount(pose, flipped, "tf")

    def _conflicts(self, base: str, frame: str) -> list[str]:
        found = []
        for pair in self._frames.path(base, frame):
            said = self._frames.said[pair]
            if len(said) > 1 and pair in self._frames.static:
                places = "; ".join(_place(rigid) for rigid in said)
                found.append(
                    f"{len(said)} conflicting static transforms {pair[0]} -> {pair[1]}: {places}; the last "
                    "is taken, as tf2 does (--mount X Y YAW overrides)"
                )
            elif len(said) > 1:
                found.append(f"the transform {pair[0]} -> {pair[1]} of the lidar moves")
        return found

    def _clocks(
        self, scan: _ScanStudy | None, twist: TwistCheck, problems: list[str]
    ) -> tuple[StreamConfig, dict[str, Any]]:
        """How stamps are to be read; see `scanpilot.bags.stream.HeaderClock`."""
        parent = twist.frame == "parent"
        known = [
            s
            for s in (self._odometry.times, None if scan is None else scan.times)
            if s is not None and len(s)
        ]
        if not known:
            return StreamConfig(True, True, parent), {}
        meaningless = [s for s in known if s.meaningless()]
        if meaningless:
            problems.append("headers hold no times: the time of recording is taken instead")
            return StreamConfig(True, False, parent), {"headers": "empty"}
        offsets = known[0].offsets
        middle, spread = float(np.median(offsets)), float(np.ptp(offsets))
        same = abs(middle) <= _SAME_CLOCK
        clock: dict[str, Any] = {
            "headers": "recorder's" if same else "another",
            "offset": round(middle, 4),
            "offset_spread": round(spread, 4),
            "clock_topic": self._roles.clock,
        }
        if not same:
            how = "its /clock" if self._clock_ticks else "the newest header"
            what = "are simulated time" if abs(middle) > 1e6 else "are of another clock"
            problems.append(
                f"headers {what}: {middle:+.2f} s against the time of recording; what has no header is dated "
                f"by {how}"
            )
        if spread > 1.0:
            problems.append(f"headers and the time of recording drift apart by {spread:.2f} s")
        jumps = max(s.backwards() for s in known)
        clock["backwards"] = jumps
        return StreamConfig(same, True, parent), clock

    def _usable(
        self, scan: _ScanStudy | None, rows: DoubleArray, stream: StreamConfig, max_age: float
    ) -> float:
        assert scan is not None
        if not stream.header_stamps:
            seen = scan.times.stamps - scan.times.offsets
            moved = self._odometry.times.stamps - self._odometry.times.offsets
        else:
            seen, moved = np.array(scan.good_times), rows[:, 0]
        return overlap(fresh_spans(seen, max_age), fresh_spans(moved, max_age))

    def _odometry_problems(self, rows: DoubleArray, twist: TwistCheck) -> list[str]:
        topic, found = self._roles.odom, []
        if topic is None or not len(rows):
            return []
        if self._odometry.refused:
            found.append(
                f"{topic}: {self._odometry.refused} messages cannot be used: {self._odometry.refusal}"
            )
        if twist.frame == "parent":
            found.append(
                f"{topic}: velocity is in the odometry frame, not the robot's (off by "
                f"{twist.parent_error:.3f} m/s against {twist.child_error:.3f} m/s): turned into the robot's"
            )
        elif twist.frame == "child" and twist.child_error > 0.1:
            found.append(f"{topic}: velocity is off by {twist.child_error:.2f} m/s from how the pose changes")
        if back := self._odometry.times.backwards():
            found.append(f"{topic}: stamps run backwards {back} times")
        frame, child = self._odometry.frames.most_common(1)[0][0]
        if not child:
            found.append(f"{topic}: does not name the robot's frame (child_frame_id is empty)")
        moving = [c for c in self._frames.children.get(frame, []) if (frame, c) not in self._frames.static]
        if len(moving) > 1:
            found.append(f"transforms move {' and '.join(moving)} in {frame!r}; odometry is of {child!r}")
        apart = np.diff(np.sort(rows[:, 0]))
        if apart.size > 3 and apart.max() > 3.0 * max(1e-3, float(np.median(apart))):
            found.append(
                f"{topic}: intervals from {1e3 * apart.min():.1f} to {1e3 * apart.max():.0f} ms, "
                f"median {1e3 * float(np.median(apart)):.0f} ms"
            )
        return found + self._speed_problems(topic, rows)

    def _speed_problems(self, topic: str, rows: DoubleArray) -> list[str]:
        found = []
        commands = np.array(self._commands).reshape(-1, 3)
        if len(commands):
            for name, sent, said in (("vx", commands[:, 1], rows[:, 4]), ("wz", commands[:, 2], rows[:, 6])):
                most = float(np.abs(sent[np.isfinite(sent)]).max(initial=0.0))
                peak = float(np.abs(said).max())
                if most > 0.05 and peak > 1.5 * most:
                    found.append(f"{topic}: {name} peaks at {peak:.2f}, {peak / most:.1f} times any command")
        moved = np.hypot(*np.diff(rows[:, 1:3], axis=0).T) if len(rows) > 1 else np.zeros(0)
        apart = np.diff(rows[:, 0])
        jumps = int(((moved > 0.5) & (moved > 4.0 * apart)).sum())
        if jumps:
            found.append(f"{topic}: the pose jumps {jumps} times, by {moved.max():.1f} m at most")
        return found

    def _gaps(self, scan: _ScanStudy | None, max_age: float) -> list[str]:
        found = []
        for topic, times in (
            (self._roles.scan, None if scan is None else scan.times),
            (self._roles.odom, self._odometry.times),
        ):
            if topic is None or times is None or len(times) < 2:
                continue
            apart = np.diff(np.sort(times.stamps))
            gaps = apart[apart > max_age]
            if gaps.size:
                found.append(
                    f"{topic}: {gaps.size} gaps of more than {max_age:.2f} s, the longest {gaps.max():.2f} s"
                )
        return found

    # JSON

    def _topics(self) -> list[dict[str, Any]]:
        return [
            {
                "name": t.name,
                "type": t.msgtype,
                "count": t.count,
                "role": self._roles.of(t.name),
                "readable": self._bag.knows(t),
            }
            for t in sorted(self._bag.topics.values(), key=lambda t: t.name)
        ]

    def _rates(self) -> dict[str, dict[str, float]]:
        rates: dict[str, dict[str, float]] = {}
        for t in self._bag.topics.values():
            if t.count > 1 and t.last > t.first:
                hz = 1e9 * (t.count - 1) / (t.last - t.first)
                rates[t.name] = {"hz": round(hz, 3), "longest_interval": round(1e-9 * t.longest, 4)}
        for topic, study in self._scans.items():
            rates.setdefault(topic, {}).update(study.times.intervals())
        if self._roles.odom:
            rates.setdefault(self._roles.odom, {}).update(self._odometry.times.intervals())
        return rates

    def _odometry_document(self, rows: DoubleArray, twist: TwistCheck) -> dict[str, Any]:
        if not len(rows):
            return {}
        frame, child = self._odometry.frames.most_common(1)[0][0]
        return {
            "frame": frame,
            "child_frame": child,
            "twist_frame": twist.frame,
            "twist_error_child": _number(twist.child_error),
            "twist_error_parent": _number(twist.parent_error),
            "path_length": round(float(np.hypot(*np.diff(rows[:, 1:3], axis=0).T).sum()), 2),
            "fastest": [round(float(v), 3) for v in np.abs(rows[:, 4:7]).max(axis=0)],
            "goals": dict(self._goals),
        }


def fresh_spans(stamps: DoubleArray, max_age: float) -> DoubleArray:
    """``(S, 2)`` spans of time in which the newest of these stamps is at most ``max_age`` seconds old."""
    ordered = np.unique(stamps[np.isfinite(stamps)])
    if not ordered.size:
        return np.zeros((0, 2))
    breaks = np.flatnonzero(np.diff(ordered) > max_age)
    begins = ordered[np.concatenate(([0], breaks + 1))]
    ends = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    # The last stamp of a bag is fresh for a while too, but nothing follows it.
    return np.stack((begins, ends), axis=1)


def overlap(a: DoubleArray, b: DoubleArray) -> float:
    """Seconds that lie in spans of both."""
    total, j = 0.0, 0
    for begin, end in a:
        while j < len(b) and b[j, 1] <= begin:
            j += 1
        i = j
        while i < len(b) and b[i, 0] < end:
            total += max(0.0, min(end, b[i, 1]) - max(begin, b[i, 0]))
            i += 1
    return float(total)


def _place(rigid: Rigid) -> str:
    """Seen from above, also where it is tilted."""
    (x, y, z, w), t = rigid.rotation, rigid.translation
    yaw = math.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
    return f"x {t[0]:.3f} m, y {t[1]:.3f} m, {math.degrees(yaw):.0f} degrees"


def _plain(mount: Mount) -> dict[str, Any]:
    pose = mount.pose
    return {
        "x": round(pose.x, 4),
        "y": round(pose.y, 4),
        "yaw": round(pose.yaw, 4),
        "flipped": mount.flipped,
        "source": mount.source,
    }


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
