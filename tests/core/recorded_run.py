"""A simulated robot's drive as ROS messages, in the order in which a recorder would get them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from scanpilot.geometry import quaternion_from_yaw
from scanpilot.robot import RobotSpec
from scanpilot.sim import generate
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator
from scanpilot.types import Pose2D

STORE = get_typestore(Stores.ROS2_JAZZY)
T = STORE.types
ODOMETRY_STEP = 0.05
EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Recorded:
    """A message: its topic, when it was recorded (nanoseconds), and itself."""

    topic: str
    time: int
    message: Any

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.message.__msgtype__)


def stamp_of(seconds: float) -> Any:
    nanoseconds = round(seconds * 1e9)
    return T["builtin_interfaces/msg/Time"](sec=EPOCH + nanoseconds // 10**9, nanosec=nanoseconds % 10**9)


def header(seconds: float, frame: str) -> Any:
    return T["std_msgs/msg/Header"](stamp=stamp_of(seconds), frame_id=frame)


def vector(x: float, y: float, z: float = 0.0) -> Any:
    return T["geometry_msgs/msg/Vector3"](x=x, y=y, z=z)


def twist(vx: float, wz: float, vy: float = 0.0) -> Any:
    return T["geometry_msgs/msg/Twist"](linear=vector(vx, vy), angular=vector(0.0, 0.0, wz))


def pose_message(pose: Pose2D) -> Any:
    q = quaternion_from_yaw(pose.yaw)
    return T["geometry_msgs/msg/Pose"](
        position=T["geometry_msgs/msg/Point"](x=pose.x, y=pose.y, z=0.0),
        orientation=T["geometry_msgs/msg/Quaternion"](x=q[0], y=q[1], z=q[2], w=q[3]),
    )


def odometry_message(seconds: float, pose: Pose2D, speed: Any) -> Any:
    covariance = np.zeros(36)
    return T["nav_msgs/msg/Odometry"](
        header=header(seconds, "odom"),
        child_frame_id="base_link",
        pose=T["geometry_msgs/msg/PoseWithCovariance"](pose=pose_message(pose), covariance=covariance),
        twist=T["geometry_msgs/msg/TwistWithCovariance"](
            twist=twist(float(speed[0]), float(speed[2]), float(speed[1])), covariance=covariance
        ),
    )


def scan_message(seconds: float, robot: RobotSpec, ranges: Any) -> Any:
    lidar = robot.lidar
    return T["sensor_msgs/msg/LaserScan"](
        header=header(seconds, "laser"),
        angle_min=lidar.angle_min,
        angle_max=lidar.angle_min + lidar.angle_increment * (lidar.beams - 1),
        angle_increment=lidar.angle_increment,
        time_increment=0.0,
        scan_time=0.1,
        range_min=lidar.range_min,
        range_max=lidar.range_max,
        ranges=np.asarray(ranges, dtype=np.float32),
        intensities=np.zeros(0, dtype=np.float32),
    )


def static_transform(parent: str, child: str, pose: Pose2D) -> Any:
    q = quaternion_from_yaw(pose.yaw)
    stamped = T["geometry_msgs/msg/TransformStamped"](
        header=header(0.0, parent),
        child_frame_id=child,
        transform=T["geometry_msgs/msg/Transform"](
            translation=vector(pose.x, pose.y),
            rotation=T["geometry_msgs/msg/Quaternion"](x=q[0], y=q[1], z=q[2], w=q[3]),
        ),
    )
    return T["tf2_msgs/msg/TFMessage"](transforms=[stamped])


def goal_message(seconds: float, pose: Pose2D, frame: str = "odom") -> Any:
    return T["geometry_msgs/msg/PoseStamped"](header=header(seconds, frame), pose=pose_message(pose))


def drive(robot: RobotSpec, seconds: float, seed: int = 3, stamped: bool = True) -> list[Recorded]:
    """Drive towards a goal through clutter: straight at it, and turning where something is near."""
    world = generate.clutter(seed, generate.TEST)
    space = FreeSpace(world, robot.footprint)
    rng = np.random.default_rng(seed)
    start, goal = space.sample(rng, min_distance=4.0, max_distance=10.0)
    simulator = Simulator([world], robot, 1, seed=seed)
    simulator.place(np.arange(1), start[None])
    found = [
        Recorded("/tf_static", 0, static_transform("base_link", "laser", robot.lidar.mount)),
        Recorded("/goal_pose", 0, goal_message(0.0, Pose2D(*map(float, goal)))),
    ]
    command = np.zeros((1, 3))
    delays = np.random.default_rng(seed + 1).uniform(0.001, 0.03, 100_000)
    for tick in range(round(seconds / ODOMETRY_STEP)):
        now = tick * ODOMETRY_STEP
        at = round((now + delays[tick]) * 1e9)
        pose, speed = simulator.poses[0], simulator.twists[0]
        found.append(Recorded("/odom", at, odometry_message(now, Pose2D(*map(float, pose)), speed)))
        if tick % 2 == 0:
            ranges = simulator.scan()[0]
            found.append(Recorded("/scan", at + 20_000_000, scan_message(now, robot, ranges)))
        if tick % 4 == 0:
            bearing = math.atan2(goal[1] - pose[1], goal[0] - pose[0]) - pose[2]
            near = float(np.nanmin(np.where(np.isfinite(ranges), ranges, np.inf)))
            turn = math.remainder(bearing, 2 * math.pi) if near > 0.5 else 1.0
            command[0] = (0.6 if near > 0.4 else 0.1, 0.0, float(np.clip(turn, -1.0, 1.0)))
            sent = twist(command[0, 0], command[0, 2])
            if stamped:
                sent = T["geometry_msgs/msg/TwistStamped"](header=header(now, "base_link"), twist=sent)
            found.append(Recorded("/cmd_vel", round(now * 1e9) + 2_000_000, sent))
        simulator.step(command, ODOMETRY_STEP)
    return sorted(found, key=lambda recorded: recorded.time)


def write(
    path: Path,
    run: list[Recorded],
    storage: str = "sqlite3",
    mode: CompressionMode = CompressionMode.NONE,
) -> Path:
    """Write a rosbag2."""
    plugin = StoragePlugin.SQLITE3 if storage == "sqlite3" else StoragePlugin.MCAP
    writer = Writer(path, version=9, storage_plugin=plugin)
    if mode is not CompressionMode.NONE:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connections: dict[str, Any] = {}
        for recorded in run:
            if recorded.topic not in connections:
                connections[recorded.topic] = writer.add_connection(
                    recorded.topic, recorded.kind, typestore=STORE
                )
            data = STORE.serialize_cdr(recorded.message, recorded.kind)
            writer.write(connections[recorded.topic], EPOCH * 10**9 + recorded.time, data)
    return path


def write_ros1(path: Path, run: list[Recorded]) -> Path:
    """Write a ROS 1 bag of the same messages."""
    store = get_typestore(Stores.ROS1_NOETIC)
    store.register({"tf2_msgs/msg/TFMessage": STORE.fielddefs["tf2_msgs/msg/TFMessage"]})
    with Ros1Writer(path) as writer:
        connections: dict[str, Any] = {}
        for recorded in run:
            if recorded.topic not in connections:
                connections[recorded.topic] = writer.add_connection(
                    recorded.topic, recorded.kind, typestore=store
                )
            data = store.serialize_ros1(_as_ros1(store, recorded.message), recorded.kind)
            writer.write(connections[recorded.topic], EPOCH * 10**9 + recorded.time, data)
    return path


def _as_ros1(store: Any, value: Any) -> Any:
    """The same message in ROS 1's types, whose headers have a number more."""
    if isinstance(value, list):
        return [_as_ros1(store, item) for item in value]
    if not hasattr(value, "__msgtype__"):
        return value
    kind = store.types[value.__msgtype__]
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    return kind(**{name: _as_ros1(store, getattr(value, name, 0)) for name in names})
