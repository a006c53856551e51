"""How soon zero is sent after the last good input, a signal, an exception, a hang: real processes, real DDS.

The bounds are the issue's; ``--junitxml FILE`` holds what was measured. By how much the machine delayed a
process that does nothing but work a little is allowed on top, for no program can help that.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from tests.ros.conftest import moving, node_arguments, odometry_message, scan_message, until

PERIOD = 0.2
FAILING = Path(__file__).with_name("failing_node.py")


@pytest.fixture
def zero_after(request):
    """Seconds from a moment to the first zero after it."""

    def wait(fake, since: float) -> float:
        waited = _zero_after(fake, since)
        request.node.user_properties.append(("seconds to zero", f"{waited:.3f}"))
        return waited

    return wait


def _zero_after(fake, since: float, seconds: float = 3.0) -> float:
    def zeros() -> list[float]:
        return [s.time for s in list(fake.commands) if s.time > since and not moving(s.message)]

    assert until(zeros, seconds), "no zero came"
    return zeros()[0] - since


@pytest.fixture
def drive(start, robot, policy):
    """Start the node, or a way for it to fail, and have it drive; gives it and its robot. One at a time."""
    running = []

    def begin(name: str, way: str = ""):
        arguments = node_arguments("policy_node", name, policy=policy)
        node = start(FAILING, way, *arguments[2:]) if way else start(*arguments)
        running.append(node)
        fake = robot(name)
        # A machine with much else to do takes its time to start a process.
        assert fake.drives(60.0), node.output
        return node, fake

    yield begin
    for node in running:
        node.stop()


def failed_at(node) -> float:
    """When a node that was told to fail began to."""
    assert until(lambda: "failing " in node.output, 3.0), node.output
    words = next(line for line in node.output.splitlines() if line.startswith("failing "))
    return float(words.split()[1])


@pytest.mark.parametrize("silent", ["scan", "odometry", "both"])
def test_stale_input_stops_within_two_periods(drive, machine_delay, zero_after, silent: str) -> None:
    node, fake = drive(f"stale_{silent}")
    begun = time.monotonic()
    if silent != "odometry":
        fake.scan = None
    if silent != "scan":
        fake.odometry = None
    time.sleep(0.15)
    last = fake.last_scan if silent != "odometry" else fake.last_odometry
    waited = zero_after(fake, last)
    assert waited <= 2.0 * PERIOD + machine_delay(begun) + fake.delay(begun), node.output
    # It goes on by itself.
    fake.scan, fake.odometry = scan_message, odometry_message
    assert until(lambda: moving(fake.commands[-1].message), 5.0), node.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_within_a_tenth_of_a_second(
    drive, machine_delay, zero_after, number: signal.Signals
) -> None:
    node, fake = drive(f"told_{number.name.lower()}")
    told = time.monotonic()
    node.signal(number)
    assert zero_after(fake, told) <= 0.1 + machine_delay(told), node.output
    assert node.wait(30.0) == 0, node.output


@pytest.mark.parametrize("way", ["raise", "break"])
def test_an_exception_stops_within_a_tenth_of_a_second(drive, machine_delay, zero_after, way: str) -> None:
    node, fake = drive(f"fails_{way}", way)
    told = time.monotonic()
    node.signal(signal.SIGUSR1)
    assert zero_after(fake, failed_at(node)) <= 0.1 + machine_delay(told), node.output
    if way == "raise":
        assert fake.reports("failed", "internal error: RuntimeError: out of luck") or fake.reports("driving")
        assert until(lambda: moving(fake.commands[-1].message), 5.0), node.output
    else:
        # Nobody caught it: the process ends, and says why.
        assert node.wait(30.0) == 1
        assert "RuntimeError: out of luck" in node.output


@pytest.mark.parametrize("way", ["hang", "lock"])
def test_a_hanging_control_loop_is_stopped_within_300_ms(drive, machine_delay, zero_after, way: str) -> None:
    node, fake = drive(f"fails_{way}", way)
    told = time.monotonic()
    node.signal(signal.SIGUSR1)
    begun = failed_at(node)
    last = max(fake.last_scan, fake.last_odometry)
    assert last >= begun - 0.15
    assert zero_after(fake, begun) <= 0.3 + machine_delay(told), node.output
    # And stays so while it hangs.
    time.sleep(0.5)
    assert not moving(fake.commands[-1].message)
