"""``scanpilot bench node``: what the policy node costs and how quickly it answers, over real DDS.

A policy node in a process of its own, scans and odometry from this one at a driver's pace. Latency is from
just before a scan is published to the arrival of the command it caused, so both ways through DDS are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, Twist
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import LaserScan

from scanpilot import resources
from scanpilot.types import DoubleArray, Pose2D
from scanpilot_ros import convert, qos
from scanpilot_ros.running import STOP_WITH_PARENT
from scanpilot_ros.simulation import isolate

_PATIENCE = 60.0
_WARM_UP = 3.0


class Robot(Node):
    """Does what it is told in an endless hall, and notes when commands come."""

    def __init__(self, beams: int, rate: float) -> None:
        super().__init__("benchmark")
        self._scans = self.create_publisher(LaserScan, "scan", qos.SENSOR)
        self._odometries = self.create_publisher(Odometry, "odom", qos.SENSOR)
        self._goals = self.create_publisher(PoseStamped, "goal_pose", qos.RELIABLE)
        self.create_subscription(Twist, "cmd_vel", self._on_command, qos.RELIABLE)
        self.create_subscription(DiagnosticStatus, "policy_node/status", self._on_status, qos.LATCHED)
        self._rng = np.random.default_rng(0)
        self._beams, self._period = beams, 1.0 / rate
        self._pose: DoubleArray = np.zeros(3)
        self._twist: DoubleArray = np.zeros(3)
        self._sent = 0.0
        self.latencies: list[float] = []
        self.status: dict[str, str] = {}
        self.create_timer(1.0 / rate, self._publish)

    def _publish(self) -> None:
        stamp = self.get_clock().now().to_msg()
        vx, _, wz = self._twist
        yaw = self._pose[2]
        self._pose += self._period * np.array([vx * np.cos(yaw), vx * np.sin(yaw), wz])
        self._odometries.publish(
            convert.odometry_message(self._pose, self._twist, "odom", "base_link", stamp)
        )
        ranges = self._rng.normal(6.0, 0.01, self._beams).astype(np.float32)
        increment = 2.0 * np.pi / self._beams
        scan = convert.scan_message(ranges, -np.pi, increment, (0.1, 12.0), "laser", stamp)
        self._sent = time.monotonic()
        self._scans.publish(scan)

    def _on_command(self, message: Twist) -> None:
        self._twist = np.array(convert.twist_from(message))
        if self._sent:
            self.latencies.append(time.monotonic() - self._sent)
            # The next one is another scan's.
            self._sent = 0.0

    def _on_status(self, message: DiagnosticStatus) -> None:
        self.status = {value.key: value.value for value in message.values}

    def send_goal(self) -> None:
        """Ahead, and not to be reached."""
        self._goals.publish(
            convert.pose_message(Pose2D(10_000.0, 0.0, 0.0), "odom", convert.stamp_of(time.time()))
        )


def measure(
    policy: Path, backend: str, beams: int, rate: float, seconds: float, tick_on_scan: bool
) -> dict[str, Any]:
    """One policy node, measured; see the module.

    Returns:
        Milliseconds, a share of one core, and megabytes (10^6).

    Raises:
        RuntimeError: the node does not come to drive; says what it said.
    """
    parameters = {
        "policy": policy,
        "backend": backend,
        "control_period": 1.0 / rate,
        "tick_on_scan": str(tick_on_scan).lower(),
    }
    rclpy.init()
    robot = Robot(beams, rate)
    executor = SingleThreadedExecutor()
    executor.add_node(robot)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    try:
        with _policy_node(parameters) as pid:
            _await_driving(robot)
            time.sleep(_WARM_UP)
            robot.latencies.clear()
            before, begun, cpu = _memory(pid), time.monotonic(), _cpu_seconds(pid)
            time.sleep(seconds)
            latencies, wall = list(robot.latencies), time.monotonic() - begun
            used, after = _cpu_seconds(pid) - cpu, _memory(pid)
    finally:
        executor.shutdown(timeout_sec=1.0)
        thread.join(2.0)
        robot.destroy_node()
        rclpy.shutdown()
    return {
        "backend": robot.status.get("backend"),
        "beams": beams,
        "rate": rate,
        "tick_on_scan": tick_on_scan,
        "commands": len(latencies),
        "latency_p50_ms": 1e3 * float(np.quantile(latencies, 0.5)),
        "latency_p99_ms": 1e3 * float(np.quantile(latencies, 0.99)),
        "tick_p50_ms": float(robot.status["tick_p50 (ms)"]),
        "tick_p99_ms": float(robot.status["tick_p99 (ms)"]),
        "cpu_share": used / wall,
        "memory_mb": after,
        "memory_growth_mb": after - before,
    }


def _await_driving(robot: Robot) -> None:
    deadline = time.monotonic() + _PATIENCE
    while robot.status.get("state") != "driving":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the policy node does not drive; its last status: {robot.status}")
        if robot.status.get("state") == "no goal":
            robot.send_goal()
        time.sleep(0.3)


@contextmanager
def _policy_node(parameters: dict[str, Any]) -> Iterator[int]:
    """A policy node in a process of its own; gives its id."""
    command = [sys.executable, "-m", "scanpilot_ros.policy_node", "--ros-args"]
    for name, value in parameters.items():
        command += ["-p", f"{name}:={value}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # What it says is for people; standard output is for the result.
        stdout=sys.stderr,
        env={**os.environ, STOP_WITH_PARENT: str(os.getpid())},
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_seconds(pid: int) -> float:
    """Used so far by all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Resident, 10^6 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return 1e-6 * pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scanpilot bench node", description=__doc__)
    parser.add_argument("--policy", default="generic_diff", help="released policy or policy directory")
    parser.add_argument("--backend", nargs="+", default=["torch", "onnx"], choices=["torch", "onnx"])
    parser.add_argument("--beams", type=int, default=720)
    parser.add_argument("--rate", type=float, default=20.0, help="scans and commands a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each backend")
    parser.add_argument("--timer", action="store_true", help="tick at fixed times instead of on each scan")
    args = parser.parse_args(arguments)
    isolate()
    policy = resources.find("policy", args.policy).resolve()
    results = {
        backend: measure(policy, backend, args.beams, args.rate, args.seconds, not args.timer)
        for backend in args.backend
    }
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
