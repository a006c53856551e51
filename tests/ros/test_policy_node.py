"""The policy node as others meet it: every way out ends in zero, and it says what it does."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import LaserScan
from std_srvs.srv import SetBool, Trigger
from visualization_msgs.msg import MarkerArray

from scanpilot_ros import qos
from scanpilot_ros.policy_node import PolicyNode
from tests.ros.conftest import moving, odometry_message, until

PERIOD = 0.2


@pytest.fixture(scope="module")
def node(start_node, policy):
    return start_node("policy_node", "one", policy=policy, goal_tolerance=0.5, goal_hysteresis=0.2)


@pytest.fixture
def fake(bench, node, robot):
    """Its robot, driving."""
    made = robot("one")
    made.send_goal()
    assert made.reports("driving", seconds=20.0), node.output
    assert until(lambda: made.commands and moving(made.commands[-1].message), 5.0)
    return made


def test_goal_reached_stops_until_it_moves_away(node, fake) -> None:
    fake.odometry = lambda: odometry_message(x=4.6)
    assert fake.reports("reached"), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    fake.odometry = lambda: odometry_message(x=4.4)
    time.sleep(3.0 * PERIOD)
    assert fake.status["state"] == "reached"
    fake.odometry = lambda: odometry_message(x=4.2)
    assert fake.reports("driving"), node.output


def test_enable_and_stop(bench, node, fake) -> None:
    assert bench.call(SetBool, "/one/policy_node/enable", SetBool.Request(data=False)).success
    assert fake.reports("disabled"), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    assert bench.call(SetBool, "/one/policy_node/enable", SetBool.Request(data=True)).success
    assert fake.reports("driving"), node.output
    assert bench.call(Trigger, "/one/policy_node/stop", Trigger.Request()).success
    assert fake.reports("no goal", "waiting for a goal"), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)


def test_shows_what_it_sees_and_where_it_goes(bench, node, fake) -> None:
    scans = bench.listen(LaserScan, "/one/policy_node/reconstruction", qos.RELIABLE)
    markers = bench.listen(MarkerArray, "/one/policy_node/markers", qos.RELIABLE)
    diagnostics = bench.listen(DiagnosticArray, "/diagnostics", 10)
    assert until(lambda: scans and markers and diagnostics, 5.0), node.output
    scan = scans[0].message
    ranges = np.array(scan.ranges)
    assert (len(ranges), scan.header.frame_id) == (180, "base_link")
    assert np.isfinite(ranges).all()
    assert ranges.min() >= 0.2
    assert ranges.max() <= 20.0
    assert {m.ns for m in markers[0].message.markers} == {"arc", "footprint", "reason", "goal"}
    assert diagnostics[0].message.status[0].name == "/one/policy_node: navigation"


def test_deactivated_it_is_silent_and_activated_it_goes_on(bench, node, fake) -> None:
    def change(transition: int) -> None:
        request = ChangeState.Request(transition=Transition(id=transition))
        assert bench.call(ChangeState, "/one/policy_node/change_state", request).success

    change(Transition.TRANSITION_DEACTIVATE)
    assert until(lambda: not moving(fake.commands[-1].message), 1.0), node.output
    assert fake.reports("disabled", "not active")
    count = len(fake.commands)
    time.sleep(3.0 * PERIOD)
    assert len(fake.commands) == count
    change(Transition.TRANSITION_ACTIVATE)
    assert until(lambda: moving(fake.commands[-1].message), 3.0), node.output

    for transition in (
        Transition.TRANSITION_DEACTIVATE,
        Transition.TRANSITION_CLEANUP,
        Transition.TRANSITION_CONFIGURE,
        Transition.TRANSITION_ACTIVATE,
    ):
        change(transition)
    assert fake.drives(), node.output


def test_exception_in_a_tick_stops_the_robot_but_not_the_node(bench, robot, policy, monkeypatch) -> None:
    values = [Parameter("policy", value=str(policy))]
    node = PolicyNode(namespace="broken", parameter_overrides=values)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    fake = robot("broken")
    assert fake.drives()

    def fail(_now: float) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(node.navigator, "tick", fail)
        assert fake.reports("failed", "internal error: RuntimeError: out of luck")
        assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    assert fake.reports("driving")
    node.halt()
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    executor.shutdown(timeout_sec=2.0)
    thread.join(2.0)
    node.destroy_node()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_in_zero_at_once(start_node, robot, policy, number: signal.Signals) -> None:
    name = f"ends_{number.name.lower()}"
    node = start_node("policy_node", name, policy=policy)
    fake = robot(name)
    assert fake.drives(), node.output
    sent = time.monotonic()
    node.signal(number)
    assert node.wait(10.0) == 0
    zeros = [s.time for s in list(fake.commands) if s.time > sent and not moving(s.message)]
    assert zeros
    assert zeros[0] - sent < 0.25
    assert not any(moving(s.message) for s in list(fake.commands) if s.time > zeros[0])
    assert fake.status["state"] == "disabled"
    assert "Traceback" not in node.output


def test_a_second_signal_cuts_no_end_short(start_node, robot, policy) -> None:
    """What launch does in some shutdowns; the numerical libraries' threads must not fall for it either."""
    node = start_node("policy_node", "twice", policy=policy)
    fake = robot("twice")
    assert fake.drives(), node.output
    sent = time.monotonic()
    node.signal(signal.SIGINT)
    time.sleep(0.02)
    node.signal(signal.SIGINT)
    assert node.wait(10.0) == 0, node.output
    assert any(s.time > sent and not moving(s.message) for s in list(fake.commands))


def test_stamped_commands(start_node, robot, policy) -> None:
    node = start_node("policy_node", "stamped", policy=policy, stamped=True)
    fake = robot("stamped", stamped=True)
    assert fake.drives(), node.output
    assert isinstance(fake.commands[-1].message, TwistStamped)
    assert fake.commands[-1].message.header.frame_id == "base_link"
    assert fake.commands[-1].message.header.stamp.sec > 0


def test_warns_when_only_the_other_type_is_listened_to(start_node, robot, policy) -> None:
    node = start_node("policy_node", "deaf", policy=policy)
    fake = robot("deaf", stamped=True)
    words = "/deaf/cmd_vel is published as Twist, but its subscribers want TwistStamped: set stamped:=true"
    assert until(lambda: words in fake.status.get("reason", ""), 20.0), node.output
    assert words in node.output


def test_waits_for_its_manager_without_autostart(bench, start_node, robot, policy) -> None:
    node = start_node("policy_node", "managed", policy=policy, autostart=False)
    fake = robot("managed")
    assert fake.reports("disabled", "not configured", seconds=20.0), node.output
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        request = ChangeState.Request(transition=Transition(id=transition))
        assert bench.call(ChangeState, "/managed/policy_node/change_state", request).success
    assert fake.drives(), node.output
