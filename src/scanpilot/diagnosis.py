"""What is wrong with a robot as seen from outside, and how to mend it: from facts to findings.

Free of ROS: whoever looks at a running graph (`scanpilot_ros.doctor`), at a bag or at a test's made-up
robot writes down a `RobotFacts`, and `diagnose` judges it. Each remedy is something that can be typed or
done; docs/robot.md says more about each subject.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scanpilot.manifest import PolicyManifest
from scanpilot.observation import ERROR_CODE_LIMIT
from scanpilot.types import FloatArray, Pose2D

Level = Literal["ok", "note", "warning", "error"]

# Seconds by which a stamp may differ from the node's clock before clocks are to blame.
_CLOCK_SLACK = 0.3
# A robot stops when an input is silent for so many control periods (`navigator.STALE_PERIODS`).
_STALE_PERIODS = 1.75
_TWIST, _STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``ok``; ``note``: worth knowing; ``warning``: drives, but not as it should; ``error``: does
            not drive, or not safely.
        subject: what was looked at.
        message: what was found.
        remedy: what to do about it; empty where there is nothing to do.
    """

    level: Level
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Endpoint:
    """One publisher or subscriber.

    Attributes:
        node: full name of its node.
        kind: type of its messages, such as ``sensor_msgs/msg/LaserScan``.
        mismatch: why its quality of service cannot meet ours; empty where it can.
    """

    node: str
    kind: str
    mismatch: str = ""


@dataclass
class TopicFacts:
    """What was seen of a topic in ``seconds`` of listening.

    Attributes:
        name: resolved.
        kind: the type it should have.
        publishers, subscribers: other than whoever looks.
        count: messages heard.
        seconds: listened for.
        stamp_ages: of each message, seconds on the node's clock; negative: from the future.
        frames: ``header.frame_id`` as they were.
        candidates: other topics of this type that somebody publishes (or, for commands, hears).
    """

    name: str
    kind: str
    publishers: list[Endpoint] = field(default_factory=list)
    subscribers: list[Endpoint] = field(default_factory=list)
    count: int = 0
    seconds: float = 0.0
    stamp_ages: list[float] = field(default_factory=list)
    frames: set[str] = field(default_factory=set)
    candidates: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds if self.seconds > 0.0 else 0.0


@dataclass
class ScanFacts:
    """The geometry of a lidar's scans.

    Attributes:
        ranges: of the newest scan, metres.
        beams: numbers of beams that were seen.
        angle_min, angle_increment: radians, in the lidar's frame.
        range_min, range_max: metres.
        fault: why a scan was refused; empty if none was.
    """

    ranges: FloatArray
    beams: set[int]
    angle_min: float
    angle_increment: float
    range_min: float
    range_max: float
    fault: str = ""


@dataclass
class OdometryFacts:
    """What odometry says.

    Attributes:
        child_frame: the robot's frame.
        fault: why a message was refused; empty if none was.
        moved: metres between first and last pose.
        turned: radians between first and last pose.
    """

    child_frame: str = ""
    fault: str = ""
    moved: float = 0.0
    turned: float = 0.0


@dataclass
class NodeFacts:
    """The running policy node.

    Attributes:
        name: full.
        parameters: by name; empty where it did not answer.
        state, reason: of its status.
    """

    name: str
    parameters: dict[str, object] = field(default_factory=dict)
    state: str = ""
    reason: str = ""


@dataclass
class RobotFacts:
    """A robot as seen from outside.

    Attributes:
        scan, odometry, goal, command: topics.
        geometry: ``None`` before the first scan.
        pose: ``None`` before the first odometry.
        policy: to drive with; ``None`` where none was named.
        node: the policy node, where it runs.
        stamped: whether ``cmd_vel`` is, or would be, sent as TwistStamped.
        mount: of the lidar in the robot, and whether it is upside down; ``None``: nobody says.
        mount_source: who says so.
        tf: parent of each frame that TF knows; ``None`` where TF cannot be read here.
        clock: whether somebody publishes ``/clock``, and whether it ticks.
        use_sim_time: whether the node's time comes from ``/clock``.
        others: how many other nodes were seen at all.
    """

    scan: TopicFacts
    odometry: TopicFacts
    goal: TopicFacts
    command: TopicFacts
    geometry: ScanFacts | None = None
    pose: OdometryFacts | None = None
    policy: PolicyManifest | None = None
    node: NodeFacts | None = None
    stamped: bool = False
    mount: tuple[Pose2D, bool] | None = None
    mount_source: str = ""
    tf: dict[str, str] | None = None
    clock: tuple[bool, bool] = (False, False)
    use_sim_time: bool = False
    others: int = 0

    @property
    def period(self) -> float:
        """Seconds between commands: the node's, else the policy's, else 0.2."""
        stated = self.node.parameters.get("control_period") if self.node else None
        if isinstance(stated, float) and stated > 0.0:
            return stated
        return 0.2 if self.policy is None else self.policy.control_period


def diagnose(facts: RobotFacts) -> list[Finding]:
    """All findings, in the order in which to mend them."""
    if facts.others == 0:
        return [
            Finding(
                "error",
                "discovery",
                "no other ROS node can be seen",
                "start the robot's drivers; if they run, give this terminal their ROS_DOMAIN_ID, "
                "RMW_IMPLEMENTATION and ROS_AUTOMATIC_DISCOVERY_RANGE (Humble: ROS_LOCALHOST_ONLY)",
            )
        ]
    return [
        *_clock(facts),
        *_input(facts, facts.scan, "scan"),
        *_geometry(facts),
        *_input(facts, facts.odometry, "odom"),
        *_odometry(facts),
        *_frames(facts),
        *_mount(facts),
        *_goal(facts),
        *_command(facts),
        *_node(facts),
    ]


def _clock(facts: RobotFacts) -> Iterator[Finding]:
    there, ticks = facts.clock
    if facts.use_sim_time and not there:
        yield Finding(
            "error",
            "clock",
            "use_sim_time is true, but nobody publishes /clock",
            "on a real robot set use_sim_time:=false; in simulation start the simulator or its clock bridge",
        )
    elif facts.use_sim_time and not ticks:
        yield Finding("error", "clock", "/clock stands still", "let the simulator run: it is paused")
    elif there and ticks and not facts.use_sim_time:
        yield Finding(
            "warning",
            "clock",
            "somebody publishes /clock, but use_sim_time is false",
            "in simulation set use_sim_time:=true; on a real robot end what publishes /clock "
            "(a bag player or a simulator)",
        )
    else:
        yield Finding("ok", "clock", "simulated, ticks" if facts.use_sim_time else "the machine's own")


def _input(facts: RobotFacts, topic: TopicFacts, argument: str) -> Iterator[Finding]:
    """Somebody publishes it, of the right type, often enough, with stamps of this clock."""
    kinds = {p.kind for p in topic.publishers}
    if not topic.publishers:
        yield Finding("error", argument, f"nobody publishes {topic.name}", _start_or_remap(topic, argument))
        return
    if topic.kind not in kinds:
        yield Finding(
            "error",
            argument,
            f"{topic.name} is published as {', '.join(sorted(kinds))}, expected {topic.kind}",
            _start_or_remap(topic, argument),
        )
        return
    if len(topic.publishers) > 1:
        nodes = ", ".join(sorted(p.node for p in topic.publishers))
        yield Finding(
            "warning",
            argument,
            f"{topic.name} has several publishers: {nodes}",
            "keep one, or remap the others",
        )
    mismatches = [p for p in topic.publishers if p.mismatch]
    for publisher in mismatches:
        yield Finding(
            "error",
            argument,
            f"{topic.name}: QoS of {publisher.node} cannot reach the policy node: {publisher.mismatch}",
            "change the driver's QoS to that of sensor data, KEEP_LAST and VOLATILE or more",
        )
    if topic.count == 0:
        if not mismatches:
            yield Finding(
                "error",
                argument,
                f"{topic.name} has a publisher, but nothing came in {topic.seconds:.0f} s",
                f"see what {topic.publishers[0].node} says; if it runs on another machine, allow UDP "
                "multicast between the two or set ROS_STATIC_PEERS",
            )
        return
    yield from _rate(facts, topic, argument)
    yield from _stamps(facts, topic, argument)


def _start_or_remap(topic: TopicFacts, argument: str) -> str:
    if topic.candidates:
        return f"start the node with {argument}:={topic.candidates[0]}" + (
            f" (or {', '.join(topic.candidates[1:])})" if len(topic.candidates) > 1 else ""
        )
    return f"start the driver that publishes {topic.kind}; nobody publishes one under another name either"


def _rate(facts: RobotFacts, topic: TopicFacts, argument: str) -> Iterator[Finding]:
    parameter = {"scan": "scan_timeout", "odom": "odom_timeout"}[argument]
    stated = facts.node.parameters.get(parameter) if facts.node else None
    allowed = stated if isinstance(stated, float) and stated > 0.0 else _STALE_PERIODS * facts.period
    said = f"{topic.rate:.1f} Hz"
    if topic.rate * allowed < 1.0:
        needed = math.ceil(10.0 * 1.75 / topic.rate) / 10.0
        yield Finding(
            "error",
            argument,
            f"{topic.name} comes with {said}: the robot stops after {allowed:.2f} s without one",
            f"raise the driver's rate, or set {parameter}:={needed} and drive slowly (limits.vx)",
        )
    elif topic.rate * facts.period < 0.8:
        yield Finding(
            "warning",
            argument,
            f"{topic.name} comes with {said}, less than once in {facts.period:.2f} s, the control period",
            f"raise the driver's rate to {1.0 / facts.period:.0f} Hz or more",
        )
    else:
        yield Finding("ok", argument, f"{topic.name}: {said}")


def _stamps(facts: RobotFacts, topic: TopicFacts, argument: str) -> Iterator[Finding]:
    if not topic.stamp_ages:
        return
    middle = float(np.median(topic.stamp_ages))
    if abs(middle) <= _CLOCK_SLACK:
        return
    if abs(middle) > 1e6 or facts.use_sim_time != facts.clock[0]:
        remedy = "stamps are of another time base: " + (
            "set use_sim_time:=true" if facts.clock[0] else "have the driver stamp with the system's time"
        )
    else:
        remedy = "synchronise the clocks of the two machines (chrony or ntp)"
    where = "old" if middle > 0.0 else "in the future"
    yield Finding(
        "warning",
        argument,
        f"{topic.name}: stamps are {abs(middle):.2f} s {where} on this clock; the policy node judges by "
        "arrival and drives, TF look-ups of others will fail",
        remedy,
    )


def _geometry(facts: RobotFacts) -> Iterator[Finding]:
    scan = facts.geometry
    if scan is None:
        return
    if scan.fault:
        yield Finding("error", "scan", f"{facts.scan.name}: {scan.fault}", "correct the driver's settings")
        return
    span = abs(scan.angle_increment) * max(scan.beams)
    direction = "clockwise" if scan.angle_increment < 0.0 else "counter-clockwise"
    yield Finding(
        "ok",
        "scan",
        f"{min(scan.beams)}{'' if len(scan.beams) == 1 else f' to {max(scan.beams)}'} beams over "
        f"{math.degrees(span):.0f} deg, {direction}, {scan.range_min:g} to {scan.range_max:g} m",
    )
    finite = np.isfinite(scan.ranges) & (scan.ranges > ERROR_CODE_LIMIT) & (scan.ranges < scan.range_max)
    if not finite.any():
        yield Finding(
            "error",
            "scan",
            f"not one of {scan.ranges.size} ranges is a measurement",
            "is the lidar covered, or its motor off? Something within range must be seen",
        )
    if facts.policy is not None:
        yield from _against_policy(facts.policy, scan, span)


def _against_policy(policy: PolicyManifest, scan: ScanFacts, span: float) -> Iterator[Finding]:
    seen = policy.observation
    wanted = seen.angle_max - seen.angle_min
    if span < 0.9 * wanted:
        yield Finding(
            "warning",
            "scan",
            f"the policy looks at {math.degrees(wanted):.0f} deg, the lidar sees {math.degrees(span):.0f}: "
            "the rest looks free to it",
            "train a policy for this lidar: scanpilot train --robot YOUR_ROBOT.yaml",
        )
    if abs(scan.angle_increment) > 3.0 * seen.sector:
        yield Finding(
            "warning",
            "scan",
            f"beams stand {math.degrees(abs(scan.angle_increment)):.1f} deg apart, the policy's are "
            f"{math.degrees(seen.sector):.1f} deg wide",
            "raise the lidar's resolution, or train a policy for it",
        )
    reach = policy.robot.lidar.range_max
    if scan.range_max < 0.5 * min(reach, seen.range_max):
        yield Finding(
            "note",
            "scan",
            f"the lidar sees {scan.range_max:g} m far, the policy was trained with {reach:g} m",
            "if it drives too fast for what it sees, tighten limits.vx or train for this lidar",
        )
    radius = policy.robot.footprint.inscribed_radius
    if scan.range_min > radius + 0.1:
        yield Finding(
            "warning",
            "scan",
            f"nothing nearer than {scan.range_min:g} m is seen, and the robot's side is at {radius:g} m",
            "set the lidar's shortest range lower if it can measure there",
        )


def _odometry(facts: RobotFacts) -> Iterator[Finding]:
    pose = facts.pose
    if pose is None:
        return
    if pose.fault:
        yield Finding("error", "odom", f"{facts.odometry.name}: {pose.fault}", "correct the odometry driver")
    if not pose.child_frame and not (facts.node and facts.node.parameters.get("base_frame")):
        yield Finding(
            "error",
            "odom",
            f"{facts.odometry.name} names no child frame",
            "have the driver set child_frame_id, or set base_frame:=base_link",
        )


def _frames(facts: RobotFacts) -> Iterator[Finding]:
    for topic in (facts.scan, facts.odometry):
        slashed = sorted(f for f in topic.frames if f.startswith("/"))
        if slashed:
            yield Finding(
                "note",
                "frames",
                f"{topic.name} has frame {slashed[0]!r}; the policy node drops the slash, tf2 does not",
                "remove the leading slash in the driver's settings",
            )
        if "" in topic.frames:
            yield Finding(
                "warning", "frames", f"{topic.name} names no frame", "set frame_id in the driver's settings"
            )
        if len(topic.frames - {""}) > 1:
            yield Finding(
                "warning",
                "frames",
                f"{topic.name} comes in several frames: {', '.join(sorted(topic.frames))}",
                "remap one of its publishers",
            )


def _mount(facts: RobotFacts) -> Iterator[Finding]:
    if facts.geometry is None or facts.geometry.fault:
        return
    frame = next(iter(sorted(facts.scan.frames)), "").lstrip("/")
    base = (facts.pose.child_frame if facts.pose else "").lstrip("/") or "base_link"
    if facts.mount is None:
        static = (
            f"ros2 run tf2_ros static_transform_publisher --x X --y Y --yaw YAW --frame-id {base} "
            f"--child-frame-id {frame or 'laser'}"
        )
        why = (
            "TF cannot be read here (no tf2_msgs), and no parameter or robot file states it"
            if facts.tf is None
            else f"TF knows no way from {base!r} to {frame!r}, and no parameter or robot file states it"
        )
        yield Finding(
            "error" if facts.tf is not None else "warning",
            "lidar mount",
            f"where the lidar sits is not known: {why}",
            f"set lidar.x, lidar.y and lidar.yaw (metres, radians), or publish it: {static}",
        )
    mount, flipped = facts.mount or (Pose2D(0.0, 0.0, 0.0), False)
    source = facts.mount_source or "assumed"
    yield Finding(
        "ok" if facts.mount is not None else "note",
        "lidar mount",
        f"x {mount.x:.2f} m, y {mount.y:.2f} m, yaw {math.degrees(mount.yaw):.0f} deg"
        f"{', upside down' if flipped else ''} ({source}); {_nearest(facts.geometry, mount, flipped)}",
        "" if facts.mount is not None else "compare with what stands there before you let it drive",
    )


def _nearest(scan: ScanFacts, mount: Pose2D, flipped: bool) -> str:
    """Where the nearest thing is, in words that somebody beside the robot can compare with what he sees."""
    ranges = np.where(
        np.isfinite(scan.ranges) & (scan.ranges > ERROR_CODE_LIMIT), scan.ranges.astype(np.float64), math.inf
    )
    i = int(np.argmin(ranges))
    if not math.isfinite(ranges[i]):
        return "nothing is seen"
    angle = mount.yaw + (-1.0 if flipped else 1.0) * (scan.angle_min + i * scan.angle_increment)
    x, y = mount.x + ranges[i] * math.cos(angle), mount.y + ranges[i] * math.sin(angle)
    bearing = math.degrees(math.atan2(y, x))
    sides = ("ahead", "ahead left", "left", "behind left", "behind", "behind right", "right", "ahead right")
    return f"so the nearest thing is {math.hypot(x, y):.2f} m away, {sides[round(bearing / 45.0) % 8]}"


def _goal(facts: RobotFacts) -> Iterator[Finding]:
    for publisher in facts.goal.publishers:
        if publisher.kind != facts.goal.kind:
            yield Finding(
                "error",
                "goal",
                f"{publisher.node} sends {facts.goal.name} as {publisher.kind}, expected {facts.goal.kind}",
                "send goals as PoseStamped; RViz's 2D Goal Pose does",
            )
        elif publisher.mismatch:
            yield Finding(
                "warning",
                "goal",
                f"{publisher.node} publishes {facts.goal.name} as {publisher.mismatch}: a goal may get lost",
                "publish goals RELIABLE",
            )
    if not facts.goal.publishers:
        yield Finding(
            "note",
            "goal",
            f"nobody publishes {facts.goal.name} yet",
            f"send one: ros2 topic pub --once {facts.goal.name} geometry_msgs/msg/PoseStamped "
            f'"{{header: {{frame_id: {_odometry_frame(facts)}}}, pose: {{position: {{x: 2.0}}, '
            'orientation: {w: 1.0}}}"',
        )


def _odometry_frame(facts: RobotFacts) -> str:
    return next(iter(sorted(facts.odometry.frames)), "odom").lstrip("/") or "odom"


def _command(facts: RobotFacts) -> Iterator[Finding]:
    topic = facts.command
    own, other = (_STAMPED, _TWIST) if facts.stamped else (_TWIST, _STAMPED)
    kinds = {s.kind for s in topic.subscribers}
    if not topic.subscribers:
        yield Finding(
            "error",
            "cmd_vel",
            f"nobody listens to {topic.name}",
            f"start the node with cmd_vel:={topic.candidates[0]}"
            if topic.candidates
            else "start the base's driver",
        )
    elif own not in kinds and other in kinds:
        yield Finding(
            "error",
            "cmd_vel",
            f"{topic.name} would be sent as {own.rpartition('/')[2]}, but its listeners want "
            f"{other.rpartition('/')[2]}: nothing would move, without any error",
            f"set stamped:={str(not facts.stamped).lower()}",
        )
    elif own not in kinds:
        yield Finding(
            "error",
            "cmd_vel",
            f"{topic.name} is listened to as {', '.join(sorted(kinds))}, expected {own}",
            "put a node between that translates, or another driver",
        )
    else:
        yield Finding(
            "ok", "cmd_vel", f"{topic.name}: {own.rpartition('/')[2]}, heard by {_names(topic, own)}"
        )
    for subscriber in topic.subscribers:
        if subscriber.mismatch and subscriber.kind == own:
            yield Finding(
                "error",
                "cmd_vel",
                f"QoS: {subscriber.node} cannot hear the policy node: {subscriber.mismatch}",
                "change the listener's QoS to RELIABLE or BEST_EFFORT, VOLATILE",
            )
    node = facts.node.name if facts.node else ""
    rivals = sorted({p.node for p in topic.publishers if p.node != node})
    if rivals:
        yield Finding(
            "error",
            "cmd_vel",
            f"{topic.name} is published by others too: {', '.join(rivals)}; the base would obey both in turn",
            "end them, or put twist_mux between: start the node with cmd_vel:=cmd_vel_policy and give "
            "twist_mux that topic with a lower priority than the joystick's",
        )


def _names(topic: TopicFacts, kind: str) -> str:
    return ", ".join(sorted({s.node for s in topic.subscribers if s.kind == kind}))


def _node(facts: RobotFacts) -> Iterator[Finding]:
    if facts.node is None:
        yield Finding(
            "note",
            "policy node",
            "does not run",
            "start it, with the arguments named above: "
            "ros2 launch scanpilot navigation.launch.py policy:=POLICY",
        )
        return
    well = ("driving", "turning", "recovering", "reached", "no goal")
    level: Level = "ok" if facts.node.state in well else "warning"
    remedy = "" if level == "ok" else "see the table of states in docs/robot.md"
    yield Finding(level, "policy node", f"{facts.node.name}: {facts.node.state}: {facts.node.reason}", remedy)
