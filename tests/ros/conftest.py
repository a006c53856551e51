"""Real processes on real DDS, apart from everything else on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Before rclpy is imported anywhere: test processes side by side must not hear each other.
os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 101)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"

DATA = Path(os.environ.get("SCANPILOT_DATA", Path(__file__).resolve().parents[2] / ".." / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """Recordings of other people; not part of the project."""
    if not DATA.is_dir():
        pytest.skip("no recorded data: neither ../shared/data nor SCANPILOT_DATA")
    return DATA


def make_policy(directory: Path, seed: int = 0, vx: float = 1.0) -> str:
    """A policy with random weights; returns its identity."""
    import torch

    from scanpilot.checkpoint import write_policy
    from scanpilot.manifest import NetworkConfig, PolicyManifest
    from scanpilot.networks import new_networks
    from scanpilot.observation import observation_for
    from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec

    torch.manual_seed(seed)
    limits = Limits(vx=vx, wz=1.5, ax=2.0, awz=4.0)
    robot = RobotSpec("tester", "differential", Footprint(radius=0.2), limits, Lidar(beams=360))
    manifest = PolicyManifest(f"random_{seed}", robot, observation_for(robot), NetworkConfig(), 0.2)
    network, decoder = new_networks(manifest)
    return write_policy(directory, manifest, network, decoder)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy directory with random weights: nothing useful, but finite and bounded like any other."""
    directory = tmp_path_factory.mktemp("policies") / "random"
    make_policy(directory)
    return directory


class Process:
    """A child process in a group of its own, its output in a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def wait(self, seconds: float = 20.0) -> int:
        return self._process.wait(seconds)

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def memory(self) -> float:
        """Resident memory, MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return float(line.split()[1]) / 1024.0
        raise AssertionError("no VmRSS")


Start = Callable[..., Process]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start ``python ARGUMENTS``; everything still running at the end is ended."""
    folder = tmp_path_factory.mktemp("logs")
    processes: list[Process] = []

    def begin(*arguments: str | Path) -> Process:
        command = [sys.executable, *map(str, arguments)]
        processes.append(Process(command, folder / f"{len(processes)}.log"))
        return processes[-1]

    yield begin
    for process in processes:
        process.stop()


def node_arguments(
    module: str, namespace: str = "", remap: dict[str, str] | None = None, **values: Any
) -> list[str]:
    """Command line of a node with parameters; ``__`` in a name stands for a dot."""
    arguments = ["-m", f"scanpilot_ros.{module}", "--ros-args"]
    if namespace:
        arguments += ["-r", f"__ns:=/{namespace}"]
    for old, new in (remap or {}).items():
        arguments += ["-r", f"{old}:={new}"]
    for name, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments += ["-p", f"{name.replace('__', '.')}:={text}"]
    return arguments


@pytest.fixture(scope="module")
def start_node(start: Start) -> Callable[..., Process]:
    """Start one of our nodes: ``start_node("policy_node", namespace, policy=..., ...)``."""

    def begin(
        module: str, namespace: str = "", remap: dict[str, str] | None = None, **values: Any
    ) -> Process:
        return start(*node_arguments(module, namespace, remap, **values))

    return begin


@dataclass(frozen=True)
class Seen:
    """A message and when it arrived, monotonic seconds."""

    time: float
    message: Any


class Bench:
    """A node of the test's own: publishes, listens, calls, in a thread."""

    def __init__(self) -> None:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor

        self.node = rclpy.create_node(f"bench_{time.monotonic_ns()}")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def listen(self, kind: Any, topic: str, profile: Any) -> list[Seen]:
        """A list that grows as messages arrive."""
        seen: list[Seen] = []
        self.node.create_subscription(kind, topic, lambda m: seen.append(Seen(time.monotonic(), m)), profile)
        return seen

    def call(self, kind: Any, name: str, request: Any, seconds: float = 20.0) -> Any:
        """Call a service and wait for its answer."""
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(seconds), f"no service {name}"
        future = client.call_async(request)
        assert until(future.done, seconds), f"no answer from {name}"
        return future.result()

    def close(self) -> None:
        self._executor.shutdown(timeout_sec=2.0)
        self._thread.join(2.0)
        self.node.destroy_node()


# As busy as a node: by how much more than it asked for is each round prolonged?
WORKER = """
import time
while True:
    begun, used = time.monotonic(), time.thread_time()
    time.sleep(0.045)
    while time.thread_time() - used < 0.005:
        pass
    print(begun, time.monotonic() - begun - 0.050, flush=True)
"""


@pytest.fixture
def machine_delay(start: Start) -> Callable[[float], float]:
    """By how much the machine delayed a process that works a little, at worst since a time, seconds.

    What no program can help is allowed for where punctuality is tested, so that a loaded machine
    does not fail the test while a late program does.
    """
    process = start("-S", "-c", WORKER)

    def worst(since: float) -> float:
        lines = [line.split() for line in process.output.splitlines()]
        return max((float(late) for begun, late in lines if float(begun) >= since - 0.05), default=0.0)

    return worst


def until(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait for a condition; whether it came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """A `Bench` that is closed at the end."""
    import rclpy

    if not rclpy.ok():
        rclpy.init()
    made = Bench()
    yield made
    made.close()
    rclpy.shutdown()


class FakeRobot:
    """Publishes scans and odometry of a robot in an empty room, and listens to what it is told.

    What it publishes can be changed while it runs: `scan` and `odometry` are functions that make
    the messages, ``None`` stops one of them.
    """

    def __init__(
        self, bench: Bench, namespace: str, rate: float, stamped: bool = False, profile: Any = None
    ) -> None:
        from diagnostic_msgs.msg import DiagnosticStatus
        from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
        from nav_msgs.msg import Odometry
        from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
        from sensor_msgs.msg import LaserScan

        self.bench = bench
        node, prefix = bench.node, f"/{namespace}/"
        self.scan: Callable[[], Any] | None = scan_message
        self.odometry: Callable[[], Any] | None = odometry_message
        self.last_scan = self.last_odometry = 0.0
        self._delays: list[tuple[float, float]] = []
        # As drivers publish, or as a test wants everything published.
        sensor = profile or qos_profile_sensor_data
        self._scans = node.create_publisher(LaserScan, f"{prefix}scan", sensor)
        self._odometries = node.create_publisher(Odometry, f"{prefix}odom", sensor)
        self._goals = node.create_publisher(PoseStamped, f"{prefix}goal_pose", profile or 1)
        latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.commands = bench.listen(TwistStamped if stamped else Twist, f"{prefix}cmd_vel", 100)
        self.statuses = bench.listen(DiagnosticStatus, f"{prefix}policy_node/status", latched)
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(1.0 / rate,), daemon=True)
        self._thread.start()

    def _run(self, period: float) -> None:
        due = time.monotonic()
        while not self._quit.wait(max(0.0, due - time.monotonic())):
            self._delays.append((due, time.monotonic() - due))
            due = max(due + period, time.monotonic())
            scan, odometry = self.scan, self.odometry
            if scan is not None:
                self._scans.publish(scan())
                self.last_scan = time.monotonic()
            if odometry is not None:
                self._odometries.publish(odometry())
                self.last_odometry = time.monotonic()

    def close(self) -> None:
        self._quit.set()
        self._thread.join(2.0)

    def delay(self, since: float) -> float:
        """How late this very process was at worst since a time, seconds: arrivals are later by as much."""
        return max((late for due, late in list(self._delays) if due >= since), default=0.0)

    @property
    def status(self) -> dict[str, str]:
        """Keys and values of the newest status; empty before the first."""
        if not self.statuses:
            return {}
        return {v.key: v.value for v in self.statuses[-1].message.values}

    def reports(self, state: str, *words: str, seconds: float = 10.0) -> bool:
        """Wait until the status has this state and all of these words in its reason."""
        return until(
            lambda: (s := self.status).get("state") == state and all(w in s["reason"] for w in words), seconds
        )

    def send_goal(self, x: float = 5.0, y: float = 0.0, frame: str = "odom", w: float = 1.0) -> None:
        from geometry_msgs.msg import PoseStamped

        assert until(lambda: self._goals.get_subscription_count() > 0, 20.0), "nobody listens to goal_pose"
        message = PoseStamped()
        message.header.frame_id = frame
        message.pose.position.x, message.pose.position.y = x, y
        message.pose.orientation.w = w
        self._goals.publish(message)

    def drives(self, seconds: float = 20.0) -> bool:
        """Give it a goal and wait until it moves."""
        if not self.reports("no goal", seconds=seconds):
            return False
        self.send_goal()
        return until(lambda: bool(self.commands) and moving(self.commands[-1].message), seconds)

    def stands_within(self, seconds: float, after: float) -> bool:
        """Whether a zero came at most so long after, and nothing but zeros since."""
        time.sleep(max(0.0, after + seconds + 0.3 - time.monotonic()))
        late = [s for s in list(self.commands) if s.time > after + seconds]
        zeros = [
            s for s in list(self.commands) if after < s.time <= after + seconds and not moving(s.message)
        ]
        return bool(zeros) and not any(moving(s.message) for s in late)


Robot = Callable[..., FakeRobot]


@pytest.fixture
def robot(bench: Bench) -> Iterator[Robot]:
    """Make a `FakeRobot`: ``robot(namespace, rate=10.0)``."""
    made: list[FakeRobot] = []

    def make(namespace: str, rate: float = 10.0, stamped: bool = False, profile: Any = None) -> FakeRobot:
        made.append(FakeRobot(bench, namespace, rate, stamped, profile))
        return made[-1]

    yield make
    for one in made:
        one.close()


def moving(message: Any) -> bool:
    """Whether a Twist or TwistStamped is anything but zero."""
    twist = getattr(message, "twist", message)
    return (twist.linear.x, twist.linear.y, twist.angular.z) != (0.0, 0.0, 0.0)


def scan_message(ranges: Any = None, frame: str = "laser") -> Any:
    """A scan of 360 beams all round; 3 m everywhere unless told otherwise."""
    import numpy as np

    from scanpilot_ros import convert

    values = np.full(360, 3.0, np.float32) if ranges is None else np.asarray(ranges, np.float32)
    increment = 2.0 * np.pi / len(values)
    return convert.scan_message(values, -np.pi, increment, (0.1, 10.0), frame, convert.stamp_of(time.time()))


def odometry_message(x: float = 0.0, w: float = 1.0) -> Any:
    """Odometry of a robot that stands still at ``x``."""
    import numpy as np

    from scanpilot_ros import convert

    message = convert.odometry_message(
        np.array([x, 0.0, 0.0]), np.zeros(3), "odom", "base_link", convert.stamp_of(time.time())
    )
    message.pose.pose.orientation.w = w
    return message
