"""``scanpilot doctor``: looks at the running graph without moving anything, and says what to mend.

Here facts are gathered; `scanpilot.diagnosis` judges them, `scanpilot.doctor` looks at the environment and
prints. Where a policy node runs, its own topics and parameters are looked at; else those that it would have.
Arguments may be written as launch writes them: ``scan:=base_scan`` is ``--scan base_scan``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import LaserScan

from scanpilot import checkpoint, configuration, doctor, resources
from scanpilot.diagnosis import (
    Endpoint,
    Finding,
    NodeFacts,
    OdometryFacts,
    RobotFacts,
    ScanFacts,
    TopicFacts,
    diagnose,
)
from scanpilot.geometry import wrap_angle
from scanpilot.manifest import PolicyManifest
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.types import InvalidInput, Pose2D
from scanpilot_ros import convert, qos
from scanpilot_ros.frames import Frames
from scanpilot_ros.parameters import PolicyNodeParameters
from scanpilot_ros.simulation import as_option

_LASER, _ODOMETRY = "sensor_msgs/msg/LaserScan", "nav_msgs/msg/Odometry"
_GOAL = "geometry_msgs/msg/PoseStamped"
_TWISTS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
# Nanoseconds, some ten years.
_FOREVER = 3 * 10**17
_OWN_NAME = "scanpilot_doctor"
# Discovery takes about a second; what was not found by then is looked for to the end all the same.
_DISCOVERY_SECONDS = 1.5


@dataclass(frozen=True)
class Question:
    """What to look at.

    Attributes:
        namespace: of the robot.
        scan, odom, goal_pose, cmd_vel: topics that the policy node would be started with.
        stamped, use_sim_time: parameters it would be started with.
        policy, robot: to drive with; ``None`` where none was named.
        seconds: to listen for.
    """

    namespace: str = ""
    scan: str = "scan"
    odom: str = "odom"
    goal_pose: str = "goal_pose"
    cmd_vel: str = "cmd_vel"
    stamped: bool = False
    use_sim_time: bool = False
    policy: PolicyManifest | None = None
    robot: RobotSpec | None = None
    seconds: float = 4.0


class Doctor(Node):
    """Listens to one robot; publishes nothing and calls nothing but to read parameters."""

    def __init__(self, question: Question) -> None:
        super().__init__(_OWN_NAME, namespace=question.namespace, start_parameter_services=False)
        self._question = question
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)
        self._frames = Frames(self)
        self._clock_seen: list[float] = []
        self._status: DiagnosticStatus | None = None
        self._geometry: ScanFacts | None = None
        self._pose: OdometryFacts | None = None
        self._first_pose: Pose2D | None = None

    def examine(self) -> RobotFacts:
        """Listen, and write down what was seen."""
        self._spin(_DISCOVERY_SECONDS)
        node = self._policy_node()
        parameters = {} if node is None else self._read_parameters(node)
        sim_time = bool(parameters.get("use_sim_time", self._question.use_sim_time))
        names = self._names(node)
        scan, odometry = TopicFacts(names["scan"], _LASER), TopicFacts(names["odom"], _ODOMETRY)
        goal, command = TopicFacts(names["goal_pose"], _GOAL), TopicFacts(names["cmd_vel"], _TWISTS[0])
        self.create_subscription(Clock, "/clock", self._on_clock, qos.SENSOR)
        hear = self._hearer(sim_time)
        self.create_subscription(LaserScan, scan.name, hear(scan, self._on_scan), qos.SENSOR)
        self.create_subscription(Odometry, odometry.name, hear(odometry, self._on_odometry), qos.SENSOR)
        if node is not None:
            self.create_subscription(DiagnosticStatus, f"{node}/status", self._on_status, qos.LATCHED)
        self._spin(self._question.seconds)
        for topic, ours in ((scan, qos.SENSOR), (odometry, qos.SENSOR), (goal, qos.RELIABLE)):
            topic.seconds = self._question.seconds
            self._look_at(topic, ours, node)
        self._look_at(command, qos.RELIABLE, node)
        mount, source = self._mount(scan, parameters)
        return RobotFacts(
            scan=scan,
            odometry=odometry,
            goal=goal,
            command=command,
            geometry=self._geometry,
            pose=self._pose,
            policy=self._policy(parameters),
            node=None if node is None else self._node_facts(node, parameters),
            stamped=bool(parameters.get("stamped", self._question.stamped)),
            mount=mount,
            mount_source=source,
            tf={} if self._frames.has_tf else None,
            clock=(bool(self.get_publishers_info_by_topic("/clock")), len(set(self._clock_seen)) > 1),
            use_sim_time=sim_time,
            others=len(self._others()),
        )

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown(timeout_sec=1.0)
        self.destroy_node()

    def _spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0:
            self._executor.spin_once(timeout_sec=left)

    # Who is there

    def _others(self) -> list[str]:
        """Full names of all other nodes."""
        found = self.get_node_names_and_namespaces()
        return [_full_name(name, space) for name, space in found if not name.startswith(_OWN_NAME)]

    def _policy_node(self) -> str | None:
        """Full name of the policy node of this namespace, if it runs."""
        wanted = _full_name("policy_node", self.get_namespace())
        return wanted if wanted in self._others() else None

    def _names(self, node: str | None) -> dict[str, str]:
        """The four topics: as the policy node has them, or would have them."""
        question = self._question
        asked = {n: getattr(question, n) for n in ("scan", "odom", "goal_pose", "cmd_vel")}
        names = {key: self.resolve_topic_name(name) for key, name in asked.items()}
        end = time.monotonic() + _DISCOVERY_SECONDS
        # A node's topics become known one by one, after its name.
        while node is not None:
            own = self._topics_of(node)
            if all(own.values()) or time.monotonic() > end:
                return {
                    key: name if name in own[key] else (own[key] or [name])[0] for key, name in names.items()
                }
            self._spin(0.1)
        return names

    def _topics_of(self, node: str) -> dict[str, list[str]]:
        """What the policy node listens to and sends on, of each kind that matters here."""
        space, _, name = node.rpartition("/")
        heard = self.get_subscriber_names_and_types_by_node(name, space or "/")
        sent = self.get_publisher_names_and_types_by_node(name, space or "/")
        wanted = (
            ("scan", (_LASER,), heard),
            ("odom", (_ODOMETRY,), heard),
            ("goal_pose", (_GOAL,), heard),
            ("cmd_vel", _TWISTS, sent),
        )
        return {
            key: [topic for topic, kinds in topics if set(kinds) & set(own)] for key, own, topics in wanted
        }

    def _look_at(self, topic: TopicFacts, ours: Any, node: str | None) -> None:
        """Both ends of a topic, against the quality of service of the policy node's end."""
        publishers = self.get_publishers_info_by_topic(topic.name)
        subscribers = self.get_subscriptions_info_by_topic(topic.name)
        topic.publishers = [_endpoint(p, p.qos_profile, ours) for p in publishers]
        topic.subscribers = [
            _endpoint(s, ours, s.qos_profile)
            for s in subscribers
            if not s.node_name.startswith(_OWN_NAME) and _full_name(s.node_name, s.node_namespace) != node
        ]
        wanted = set(_TWISTS) if topic.kind in _TWISTS else {topic.kind}
        own = f"{_full_name('policy_node', self.get_namespace())}/"
        for name, kinds in self.get_topic_names_and_types():
            if name == topic.name or not wanted & set(kinds) or name.startswith(own):
                continue
            count = self.count_subscribers if topic.kind in _TWISTS else self.count_publishers
            if count(name) > 0:
                topic.candidates.append(name)
        # Those of this robot first: they are what was most likely meant.
        space = f"{self.get_namespace().rstrip('/')}/"
        topic.candidates.sort(key=lambda name: (not name.startswith(space), name))

    # What they say

    def _hearer(self, sim_time: bool) -> Callable[[TopicFacts, Callable[[Any], None]], Callable[[Any], None]]:
        def hear(topic: TopicFacts, take: Callable[[Any], None]) -> Callable[[Any], None]:
            def listen(message: Any) -> None:
                topic.count += 1
                topic.frames.add(message.header.frame_id)
                clock = self._clock_seen[-1] if sim_time and self._clock_seen else time.time()
                topic.stamp_ages.append(clock - convert.seconds(message.header.stamp))
                take(message)

            return listen

        return hear

    def _on_clock(self, message: Clock) -> None:
        self._clock_seen.append(convert.seconds(message.clock))

    def _on_status(self, message: DiagnosticStatus) -> None:
        self._status = message

    def _on_scan(self, message: LaserScan) -> None:
        before = self._geometry
        try:
            scan, fault = convert.scan_from(message), ""
        except InvalidInput as error:
            scan, fault = None, str(error)
        if scan is None:
            if before is None:
                self._geometry = ScanFacts(_NO_RANGES, {0}, 0.0, 0.0, 0.0, 0.0, fault)
            else:
                before.fault = fault
            return
        beams = {scan.ranges.size} | (before.beams - {0} if before else set())
        self._geometry = ScanFacts(
            scan.ranges,
            beams,
            scan.angle_min,
            scan.angle_increment,
            scan.range_min,
            scan.range_max,
            before.fault if before else "",
        )

    def _on_odometry(self, message: Odometry) -> None:
        facts = self._pose = self._pose or OdometryFacts()
        facts.child_frame = message.child_frame_id
        try:
            pose = convert.odometry_from(message).pose
        except InvalidInput as error:
            facts.fault = str(error)
            return
        first = self._first_pose = self._first_pose or pose
        facts.moved = math.hypot(pose.x - first.x, pose.y - first.y)
        facts.turned = float(wrap_angle(pose.yaw - first.yaw))

    def _mount(
        self, scan: TopicFacts, parameters: dict[str, object]
    ) -> tuple[tuple[Pose2D, bool] | None, str]:
        """Where the lidar sits, in the order in which the policy node asks, and who says so."""
        stated = [parameters.get(f"lidar.{n}", math.nan) for n in ("x", "y", "yaw")]
        numbers = [v if isinstance(v, float) else math.nan for v in stated]
        if not all(math.isnan(v) for v in numbers):
            pose = Pose2D(*(0.0 if math.isnan(v) else v for v in numbers))
            return (pose, bool(parameters.get("lidar.flipped"))), "parameters lidar.*"
        frame = next(iter(sorted(scan.frames)), "").lstrip("/")
        base = str(parameters.get("base_frame") or (self._pose.child_frame if self._pose else "")).lstrip("/")
        if self._frames.has_tf and frame and base:
            try:
                return self._frames.mount(base, frame), "TF"
            except InvalidInput:
                pass
        robot = self._question.robot
        if robot is not None:
            return (robot.lidar.mount, bool(parameters.get("lidar.flipped"))), f"robot {robot.name}"
        return None, "" if self._question.policy is None else "the policy's robot"

    def _node_facts(self, node: str, parameters: dict[str, object]) -> NodeFacts:
        facts = NodeFacts(node, parameters, "silent", "it publishes no status")
        if self._status is not None:
            values = {v.key: v.value for v in self._status.values}
            facts.state, facts.reason = values.get("state", ""), self._status.message
        return facts

    def _policy(self, parameters: dict[str, object]) -> PolicyManifest | None:
        """The one that was named, else the one that the policy node was given."""
        named = str(parameters.get("policy") or "")
        if self._question.policy is not None or not named:
            return self._question.policy
        try:
            return checkpoint.read_manifest(resources.find("policy", named))
        except (FileNotFoundError, checkpoint.CheckpointError):
            # The node says so itself, in its status.
            return None

    def _read_parameters(self, node: str) -> dict[str, object]:
        """The policy node's parameters; empty where it does not answer."""
        names = ["use_sim_time", *(f.metadata["name"] or f.name for f in fields(PolicyNodeParameters))]
        client = self.create_client(GetParameters, f"{node}/get_parameters")
        future = client.call_async(GetParameters.Request(names=names))
        end = time.monotonic() + 3.0
        while not future.done() and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.1)
        if not future.done() or future.result() is None:
            return {}
        return {
            n: v for n, p in zip(names, future.result().values, strict=False) if (v := _value(p)) is not None
        }


_NO_RANGES = convert.scan_from(LaserScan(ranges=[0.0], range_max=1.0)).ranges


def _endpoint(info: Any, offered: Any, requested: Any) -> Endpoint:
    """One end of a topic; whether what is offered there serves what is requested."""
    verdict, reason = qos_check_compatible(_stated(offered), _stated(requested))
    mismatch = reason.strip("; ") if verdict == QoSCompatibility.ERROR else ""
    return Endpoint(_full_name(info.node_name, info.node_namespace), info.topic_type, mismatch)


def _stated(profile: QoSProfile) -> QoSProfile:
    """What of a profile can fail to match; the graph says a very long time for "none" where we say 0."""
    stated = QoSProfile(depth=1, reliability=profile.reliability, durability=profile.durability)
    for name in ("deadline", "liveliness_lease_duration"):
        if 0 < getattr(profile, name).nanoseconds < _FOREVER:
            setattr(stated, name, getattr(profile, name))
    return stated


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace.rstrip('/')}/{name}"


def _value(value: ParameterValue) -> object:
    if value.type == ParameterType.PARAMETER_NOT_SET:
        return None
    return {
        ParameterType.PARAMETER_BOOL: value.bool_value,
        ParameterType.PARAMETER_INTEGER: value.integer_value,
        ParameterType.PARAMETER_DOUBLE: value.double_value,
        ParameterType.PARAMETER_STRING: value.string_value,
    }.get(value.type, list(value.string_array_value))


def examine(question: Question) -> list[Finding]:
    """Findings about a robot; takes `Question.seconds` and a few more."""
    node = Doctor(question)
    try:
        return diagnose(node.examine())
    finally:
        node.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine and print; returns 0 if nothing keeps the robot from driving, 1 if something does."""
    args = _parser().parse_args([as_option(a) for a in (sys.argv[1:] if arguments is None else arguments)])
    findings = list(doctor.examine_environment(os.environ))
    policy, robot = None, None
    if args.policy:
        loaded, finding = doctor.examine_policy(args.policy)
        findings.append(finding)
        policy = loaded.manifest if loaded is not None else None
    if args.robot:
        try:
            robot = load_robot(resources.find("robot", args.robot))
            findings.append(Finding("ok", "robot", f"{robot.name}: {robot.kinematics}"))
        except (FileNotFoundError, configuration.ConfigurationError) as error:
            findings.append(Finding("error", "robot", str(error), "correct the file"))
    topics = {n: getattr(args, n) for n in ("namespace", "scan", "odom", "goal_pose", "cmd_vel")}
    question = Question(
        **topics,
        stamped=args.stamped,
        use_sim_time=args.use_sim_time,
        policy=policy,
        robot=robot,
        seconds=args.seconds,
    )
    # None of our arguments, or rclpy would take scan:=base_scan for a rule that renames our own topics.
    rclpy.init(args=[])
    try:
        findings += examine(question)
    finally:
        rclpy.shutdown()
    doctor.show(findings)
    if args.json:
        args.json.write_text(json.dumps(doctor.as_json(findings), indent=2) + "\n", encoding="utf-8")
    return doctor.exit_code(findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scanpilot doctor", description=__doc__)
    parser.add_argument("--policy", default="", help="released policy or policy directory to drive with")
    parser.add_argument("--robot", default="", help="YAML file or shipped robot")
    parser.add_argument("--namespace", default="", help="of the robot")
    for name in ("scan", "odom", "goal_pose", "cmd_vel"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, default=name, help=f"the driver's name of the topic {name}")
    for name in ("stamped", "use_sim_time"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=_boolean, nargs="?", const=True, default=False, help=f"the node's parameter {name}"
        )
    parser.add_argument("--seconds", type=float, default=4.0, help="to listen for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings")
    return parser


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


if __name__ == "__main__":
    sys.exit(main())
