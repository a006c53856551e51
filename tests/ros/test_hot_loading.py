"""Policies replaced while the robot drives: none of it may be felt in its commands."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from tests.ros.conftest import make_policy, until

HERE = Path(__file__).parent
PERIOD = 0.05


def test_ticks_stay_on_time_under_200_publications(
    start, start_node, bench, robot, policy, tmp_path, machine_delay
) -> None:
    node = start_node(
        "policy_node", "fire", policy=policy, control_period=PERIOD, scan_timeout=1.0, odom_timeout=1.0
    )
    fake = robot("fire", rate=20.0)
    assert fake.drives(), node.output
    # The first ticks of a process may come late while it is still getting ready: not what is tested here.
    reports = len(fake.statuses)
    assert until(lambda: len(fake.statuses) > reports, 5.0), node.output
    late_before = float(fake.status["tick_late_max (ms)"])
    first = len(fake.commands)
    publisher = start(HERE / "publish_policies.py", tmp_path, "200", "/fire/policy_updates")
    assert _loaded(fake, 20, 60.0), node.output
    early = node.memory()
    assert _loaded(fake, 200, 120.0), f"{fake.status}\n{node.output}"
    late = node.memory()
    last = len(fake.commands)
    assert publisher.wait() == 0, publisher.output

    lines = [
        line.split() for line in publisher.output.splitlines() if line.endswith(tuple("0123456789abcdef"))
    ]
    published = [line for line in lines if len(line) == 3]
    assert len(published) == 200
    status = fake.status
    good = [identity for _, kind, identity in published if kind == "good"]
    assert status["policy"] == good[-1]
    assert (status["policies_loaded"], status["policies_refused"]) == ("181", "20")
    for path, kind, _ in published:
        if kind == "bad":
            assert f"policy refused: {path}" in node.output

    begun = fake.commands[first].time
    slack, own = machine_delay(begun), fake.delay(begun)
    arrivals = np.array([s.time for s in fake.commands[first:last]])
    late_tick = float(status["tick_late_max (ms)"])
    print(
        f"{publisher.output.splitlines()[-1]}; {len(arrivals)} commands; latest tick {late_tick:.1f} ms "
        f"late, the machine's own delay {1e3 * slack:.1f} ms, the test's {1e3 * own:.1f} ms; "
        f"widest gap {1e3 * np.diff(arrivals).max():.1f} ms; memory {early:.0f} -> {late:.0f} MB"
    )
    assert late_tick == late_before or late_tick < 1e3 * (0.5 * PERIOD + slack)
    assert np.diff(arrivals).max() < 1.5 * PERIOD + slack + own
    assert late - early < 30.0


def _loaded(fake, count: int, seconds: float) -> bool:
    def seen() -> bool:
        status = fake.status
        # The policy that the node started with is the first.
        return int(status["policies_loaded"]) + int(status["policies_refused"]) >= count + 1

    return until(seen, seconds)


def test_watched_path_is_loaded_when_moved_and_again_when_repaired(start_node, robot, tmp_path) -> None:
    first, second, third = (make_policy(tmp_path / name, seed) for seed, name in enumerate("abc"))
    latest = tmp_path / "latest"
    latest.symlink_to("a")
    node = start_node("policy_node", "watch", policy=latest)
    fake = robot("watch")
    assert fake.drives(), node.output
    assert fake.status["policy"] == first

    _point(latest, "b")
    assert until(lambda: fake.status["policy"] == second, 5.0), node.output

    actor = tmp_path / "c" / "actor.safetensors"
    whole = actor.read_bytes()
    actor.write_bytes(whole[:1000])
    _point(latest, "c")
    assert until(lambda: fake.status["policies_refused"] == "1", 5.0), node.output
    assert "truncated or damaged" in fake.status["last_refusal"]
    assert fake.status["policy"] == second
    assert fake.status["state"] == "driving"

    actor.write_bytes(whole)
    assert until(lambda: fake.status["policy"] == third, 5.0), node.output
    assert fake.status["state"] == "driving"


def test_directory_replaced_in_place_is_loaded(start_node, robot, tmp_path) -> None:
    make_policy(tmp_path / "policy", 1)
    node = start_node("policy_node", "replace", policy=tmp_path / "policy")
    fake = robot("replace")
    assert fake.drives(), node.output
    wanted = make_policy(tmp_path / "policy", 2)
    assert until(lambda: fake.status["policy"] == wanted, 5.0), node.output
    assert fake.status["state"] == "driving"


def test_waits_for_a_policy_that_does_not_exist_yet(start_node, robot, tmp_path) -> None:
    node = start_node("policy_node", "early", policy=tmp_path / "later")
    fake = robot("early")
    assert fake.reports("no policy", str(tmp_path / "later"), seconds=20.0), node.output
    make_policy(tmp_path / "later")
    assert fake.drives(), node.output


def test_load_policy_service_says_why_not(bench, start_node, robot, policy, tmp_path) -> None:
    from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
    from rcl_interfaces.srv import SetParameters
    from std_srvs.srv import Trigger

    node = start_node("policy_node", "asked", policy=policy)
    fake = robot("asked")
    assert fake.drives(), node.output

    def ask(path: Path) -> Trigger.Response:
        value = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=str(path))
        request = SetParameters.Request(parameters=[Parameter(name="policy", value=value)])
        assert bench.call(SetParameters, "/asked/policy_node/set_parameters", request).results[0].successful
        return bench.call(Trigger, "/asked/policy_node/load_policy", Trigger.Request())

    wrong = ask(tmp_path / "none")
    assert not wrong.success
    assert str(tmp_path / "none") in wrong.message
    other = make_policy(tmp_path / "other", 5)
    right = ask(tmp_path / "other")
    assert right.success, right.message
    assert other in right.message
    assert until(lambda: fake.status["policy"] == other, 2.0)


def test_policy_for_tighter_limits_than_ours_is_refused(start_node, robot, policy, tmp_path) -> None:
    make_policy(tmp_path / "slow", 3, vx=0.5)
    node = start_node("policy_node", "limits", policy=policy, limits__vx=0.8)
    fake = robot("limits")
    assert fake.drives(), node.output
    shutil.copytree(tmp_path / "slow", tmp_path / "copy")
    old = fake.status["policy"]
    announcer = _announce(fake.bench, "/limits/policy_updates", tmp_path / "copy")
    assert until(lambda: "limit vx = 0.8 is wider" in fake.status["last_refusal"], 5.0), node.output
    assert fake.status["policy"] == old
    assert max(s.message.linear.x for s in fake.commands) <= 0.8
    fake.bench.node.destroy_publisher(announcer)


def _announce(bench, topic: str, path: Path):
    from std_msgs.msg import String

    from scanpilot_ros import qos

    publisher = bench.node.create_publisher(String, topic, qos.ANNOUNCEMENTS)
    publisher.publish(String(data=str(path)))
    return publisher


def _point(link: Path, target: str) -> None:
    staging = link.with_name("staging")
    staging.symlink_to(target)
    os.replace(staging, link)
