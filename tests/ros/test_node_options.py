"""What can be chosen of the policy node: ONNX instead of torch, ticks on scans, parameters as it drives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters

from tests.ros.conftest import moving, until

NAME = "/options/policy_node"


@pytest.fixture(scope="module")
def node(start_node, policy):
    # The fake robot never gets anywhere.
    return start_node("policy_node", "options", policy=policy, recovery__enabled=False)


@pytest.fixture
def fake(node, robot):
    made = robot("options")
    made.send_goal()
    assert made.reports("driving", seconds=20.0), node.output
    assert until(lambda: made.commands and moving(made.commands[-1].message), 5.0)
    return made


def set_parameter(bench, name: str, value: float | bool) -> tuple[bool, str]:
    message = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=float(value))
    if isinstance(value, bool):
        message = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    request = SetParameters.Request(parameters=[Parameter(name=name, value=message)])
    (result,) = bench.call(SetParameters, f"{NAME}/set_parameters", request).results
    return result.successful, result.reason


def test_limits_are_tightened_while_it_drives(bench, node, fake) -> None:
    assert set_parameter(bench, "limits.vx", 0.05) == (True, "")
    assert until(lambda: 0.0 < fake.commands[-1].message.linear.x <= 0.05 + 1e-9, 10.0), node.output
    assert fake.status["state"] == "driving"
    assert set_parameter(bench, "limits.vx", 0.0) == (True, "")
    assert until(lambda: fake.commands[-1].message.linear.x > 0.05 + 1e-9, 10.0), node.output


def test_a_goal_is_reached_once_the_tolerance_allows(bench, node, fake) -> None:
    # It stands 5 m from its goal.
    assert set_parameter(bench, "goal_tolerance", 6.0) == (True, "")
    assert fake.reports("reached"), node.output
    assert set_parameter(bench, "goal_tolerance", 0.3) == (True, "")
    assert fake.reports("driving"), node.output


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("limits.vx", 3.0, "limits may only be tightened"),
        ("goal_tolerance", 100.0, "100.0"),
        ("stamped", True, "read when the node is configured"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_reason(bench, node, fake, name, value, words) -> None:
    ok, reason = set_parameter(bench, name, value)
    assert not ok
    assert words in reason
    time.sleep(0.3)
    assert fake.status["state"] == "driving"
    assert moving(fake.commands[-1].message)


def test_diagnostics_say_rates_ages_times_and_policy(bench, node, fake) -> None:
    seen = bench.listen(DiagnosticArray, "/diagnostics", 10)
    assert fake.reports("driving")

    def values() -> dict[str, str]:
        found = [s for m in seen for s in m.message.status if s.name == f"{NAME}: navigation"]
        return {v.key: v.value for v in found[-1].values} if found else {}

    assert until(lambda: float(values().get("/options/scan rate (Hz)", "0")) > 5.0, 20.0), values()
    found = values()
    for topic in ("/options/scan", "/options/odom"):
        assert 5.0 < float(found[f"{topic} rate (Hz)"]) < 15.0
        assert 0.0 <= float(found[f"{topic} age (s)"]) < 1.0
        assert abs(float(found[f"{topic} stamp age (s)"])) < 1.0
    assert found["backend"] == "torch"
    assert found["policy_name"] == "random_0"
    assert len(found["policy"]) == 12
    assert 0.0 < float(found["tick_p50 (ms)"]) <= float(found["tick_p99 (ms)"])
    assert int(found["ticks"]) > 0


def test_drives_by_onnx_without_loading_torch(start_node, robot, policy, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="extra export is not installed")
    from scanpilot import export

    file, _ = export.to_onnx(policy, tmp_path / "policy.onnx")
    node = start_node("policy_node", "light", policy=file, backend="onnx")
    fake = robot("light")
    assert fake.drives(), node.output
    assert fake.status["backend"] == "onnx"
    assert "torch" not in Path(f"/proc/{node.pid}/maps").read_text()
    # The promise is 250 MB.
    assert node.memory() < 250.0


def test_a_policy_without_onnx_is_refused_with_the_remedy(start_node, robot, policy) -> None:
    node = start_node("policy_node", "unexported", policy=policy, backend="onnx")
    fake = robot("unexported")
    assert fake.reports("no policy", "holds no policy.onnx", "scanpilot export", seconds=30.0), node.output


def test_acts_on_scans_when_they_come(start_node, robot, policy) -> None:
    """Scans at 10 Hz, a period of 0.1 s: each scan has its command, and at once."""
    node = start_node("policy_node", "prompt", policy=policy, tick_on_scan=True, control_period=0.1)
    fake = robot("prompt", rate=10.0)
    assert fake.drives(), (fake.status, node.output)
    sent = []
    scan = fake.scan

    def stamped():
        sent.append(time.monotonic())
        return scan()

    fake.scan = stamped
    time.sleep(3.0)
    begun, count = sent[0], len(sent)
    commands = [s.time for s in list(fake.commands) if s.time > begun]
    # At fixed times, half of the commands would come more than half a period after the scan.
    waits = sorted(min((c - t for c in commands if c > t), default=1.0) for t in sent[:-2])
    assert waits[len(waits) // 2] < 0.03 + fake.delay(begun)
    assert abs(len(commands) - count) <= max(3, count // 5)
    fake.scan = None
    # The timer goes on where scans do not, and says what is missing.
    assert fake.reports("bad input", "/prompt/scan is stale"), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 2.0)
