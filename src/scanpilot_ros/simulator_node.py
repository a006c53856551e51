"""The simulator node: N robots of one world in one process, on the topics of stage_ros2.

Per robot, below ``<name>/`` when there is more than one: ``odom``, ``ground_truth`` (frame
``world``), ``base_scan``, ``contact`` (Bool), ``clearance`` (Float32, metres) out; ``cmd_vel`` in.
Once: ``/clock`` out, service ``/reset_positions``. TF where tf2_msgs is there.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import TransformStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import LaserScan
from std_msgs.msg import Bool, Float32
from std_srvs.srv import Empty

from scanpilot.geometry import quaternion_from_yaw
from scanpilot.robot import Lidar
from scanpilot.sim.simulator import Simulator
from scanpilot.types import DoubleArray
from scanpilot_ros import convert, qos, running
from scanpilot_ros.parameters import declare, parameter, read
from scanpilot_ros.placement import make_scene

try:
    from tf2_msgs.msg import TFMessage
except ImportError:
    # The ROS wheels lack it. Robots drive without TF; RViz shows them one at a time.
    TFMessage = None


@dataclass(frozen=True)
class SimulatorParameters:
    """Parameters of the simulator node."""

    world: str = parameter("", "world file, or a generated world such as clutter:7")
    robots: int = parameter(0, "how many robots; 0: those that the world file places", 0, 1000)
    robot: str = parameter("", "YAML file of the robots; empty: as the world file describes them")
    real_time_factor: float = parameter(
        1.0, "simulated seconds per second; 0: as fast as possible", 0.0, 1000.0
    )
    odom_rate: float = parameter(20.0, "odometry and motion steps per simulated second", 1.0, 1000.0)
    scan_rate: float = parameter(
        0.0, "scans per simulated second, at most odom_rate; 0: the lidar's", 0.0, 1000.0
    )
    command_timeout: float = parameter(
        0.5, "simulated seconds after its last command for which a robot goes on", 0.0, 1000.0
    )
    best_effort: bool = parameter(False, "publish what robots sense as BEST_EFFORT, as most drivers do")
    world_frame: str = parameter("world", "the frame that stands still, such as map")
    use_stamped_velocity: bool = parameter(False, "listen for TwistStamped on cmd_vel instead of Twist")
    seed: int = parameter(0, "of sampled starts and noise", 0, 2**31 - 1)


class _Port:
    """One robot's topics."""

    def __init__(self, node: SimulatorNode, index: int, prefix: str, parameters: SimulatorParameters) -> None:
        sensed = qos.SENSOR if parameters.best_effort else qos.SENSOR_SOURCE
        self.frames = {n: f"{prefix}{n}" for n in ("odom", "base_link", "laser")}
        self.odometry = node.create_publisher(Odometry, f"{prefix}odom", sensed)
        self.truth = node.create_publisher(Odometry, f"{prefix}ground_truth", sensed)
        self.scan = node.create_publisher(LaserScan, f"{prefix}base_scan", sensed)
        self.contact = node.create_publisher(Bool, f"{prefix}contact", sensed)
        self.clearance = node.create_publisher(Float32, f"{prefix}clearance", sensed)
        self.commands = node.create_subscription(
            TwistStamped if parameters.use_stamped_velocity else Twist,
            f"{prefix}cmd_vel",
            lambda message: node.take_command(index, message),
            qos.RELIABLE,
        )


class SimulatorNode(Node):
    """Steps a `Simulator` in time with the wall clock and publishes what its robots sense."""

    def __init__(self) -> None:
        super().__init__("simulator")
        declare(self, SimulatorParameters)
        parameters = read(self, SimulatorParameters)
        scene = make_scene(parameters.world, parameters.robot, parameters.robots, parameters.seed)
        self.robot, starts = scene.robot, scene.starts
        self._starts: DoubleArray = np.array([s.pose for s in starts], dtype=np.float64)
        self._simulator = Simulator([scene.world], self.robot, len(starts), seed=parameters.seed)
        self._everyone = np.arange(len(starts))
        self._commands: DoubleArray = np.zeros((len(starts), 3))
        self._commanded: DoubleArray = np.full(len(starts), -math.inf)
        self._timeout = parameters.command_timeout
        self._world_frame = parameters.world_frame
        self._dt = 1.0 / parameters.odom_rate
        self._scan_every = max(
            1, round(parameters.odom_rate / (parameters.scan_rate or self.robot.lidar.rate))
        )
        self._steps = 0
        self._place()
        # Compiles what is not cached yet, before the clock runs.
        self._simulator.scan()
        self._simulator.clearance()

        self._ports = [_Port(self, i, prefix, parameters) for i, prefix in enumerate(scene.prefixes)]
        self._clock_publisher = self.create_publisher(ClockMessage, "/clock", qos.RELIABLE)
        self.create_service(Empty, "/reset_positions", self._on_reset)
        self._tf: Any = None
        if TFMessage is not None:
            self._tf = self.create_publisher(TFMessage, "/tf", qos.TRANSFORMS)
            self._tf_static = self.create_publisher(TFMessage, "/tf_static", qos.LATCHED)
            self._publish_static()
        factor = parameters.real_time_factor
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(self._dt / factor if factor > 0.0 else 0.0, self._step, clock=steady)
        self.get_logger().info(
            f"{len(starts)} x {self.robot.name} in {parameters.world}: {', '.join(s.name for s in starts)}"
        )

    def take_command(self, index: int, message: Twist | TwistStamped) -> None:
        """A robot's newest command; one that is not finite is refused and stops the robot."""
        twist = convert.twist_from(message)
        if not twist.is_finite():
            self.get_logger().error(
                f"{self._ports[index].commands.topic_name}: command is not finite", throttle_duration_sec=1.0
            )
            twist = type(twist)(0.0, 0.0, 0.0)
        self._commands[index] = twist
        self._commanded[index] = self._simulator.time

    def _place(self) -> None:
        self._simulator.place(self._everyone, self._starts)
        self._simulator.reset_odometry(self._everyone)
        self._commands[:] = 0.0

    def _on_reset(self, _request: Empty.Request, response: Empty.Response) -> Empty.Response:
        self._place()
        self.get_logger().info("robots are back where they started")
        return response

    def _step(self) -> None:
        simulator = self._simulator
        late = simulator.time - self._commanded > self._timeout
        self._commands[late] = 0.0
        contacts = simulator.step(self._commands, self._dt)
        self._steps += 1
        stamp = convert.stamp_of(simulator.time)
        self._clock_publisher.publish(ClockMessage(clock=stamp))
        clearances = simulator.clearance()
        scans = simulator.scan() if self._steps % self._scan_every == 0 else None
        for i, port in enumerate(self._ports):
            odom, base = port.frames["odom"], port.frames["base_link"]
            port.odometry.publish(
                convert.odometry_message(simulator.odometry[i], simulator.twists[i], odom, base, stamp)
            )
            port.truth.publish(
                convert.odometry_message(
                    simulator.poses[i], simulator.twists[i], self._world_frame, base, stamp
                )
            )
            port.contact.publish(Bool(data=bool(contacts[i])))
            port.clearance.publish(Float32(data=float(clearances[i])))
            if scans is not None:
                port.scan.publish(self._scan_message(scans[i], port.frames["laser"], stamp))
        if self._tf is not None:
            self._publish_tf(stamp)

    def _scan_message(self, ranges: Any, frame: str, stamp: Any) -> LaserScan:
        lidar: Lidar = self.robot.lidar
        limits = (lidar.range_min, lidar.range_max)
        return convert.scan_message(ranges, lidar.angle_min, lidar.angle_increment, limits, frame, stamp)

    def _publish_tf(self, stamp: Any) -> None:
        self._tf.publish(
            TFMessage(
                transforms=[
                    _transform(port.frames["odom"], port.frames["base_link"], odometry, stamp)
                    for port, odometry in zip(self._ports, self._simulator.odometry, strict=True)
                ]
            )
        )

    def _publish_static(self) -> None:
        stamp = convert.stamp_of(0.0)
        transforms = []
        for port, start in zip(self._ports, self._starts, strict=True):
            transforms.append(_transform(self._world_frame, port.frames["odom"], start, stamp))
            mount = np.array(self.robot.lidar.mount)
            transforms.append(_transform(port.frames["base_link"], port.frames["laser"], mount, stamp))
        self._tf_static.publish(TFMessage(transforms=transforms))


def _transform(parent: str, child: str, pose: DoubleArray, stamp: Any) -> TransformStamped:
    message = TransformStamped()
    message.header.frame_id, message.header.stamp, message.child_frame_id = parent, stamp, child
    message.transform.translation.x, message.transform.translation.y = float(pose[0]), float(pose[1])
    q = message.transform.rotation
    q.x, q.y, q.z, q.w = quaternion_from_yaw(float(pose[2]))
    return message


def main(args: list[str] | None = None) -> int:
    """Run the node until it is told to end."""
    return running.run(SimulatorNode, args)


if __name__ == "__main__":
    sys.exit(main())
