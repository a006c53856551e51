"""Simulator and policy nodes as processes that end together, and the demo on top of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from diagnostic_msgs.msg import DiagnosticStatus

from scanpilot_ros import qos
from tests.ros.conftest import until


def _children(pid: int) -> list[int]:
    """Processes started by one, as the kernel knows them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(bench, start, policy, tmp_path, number) -> None:
    statuses = [
        bench.listen(DiagnosticStatus, f"/robot_{i}/policy_node/status", qos.LATCHED) for i in range(2)
    ]
    simulation = start(
        "-m",
        "scanpilot_ros.simulation",
        "world:=demo",
        "robots:=2",
        f"policy:={policy}",
        "--log-dir",
        tmp_path,
    )
    ready = "waiting for a goal"
    assert until(lambda: all(s and s[-1].message.message == ready for s in statuses), 40.0), simulation.output
    children = _children(simulation.pid)
    assert len(children) == 3
    os.kill(simulation.pid, number)
    assert simulation.wait(10.0) == (0 if number == signal.SIGINT else -number)
    assert until(lambda: not any(map(_alive, children)), 10.0)
    logs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(logs) == {"simulator.log", "policy_node_robot_0.log", "policy_node_robot_1.log"}
    assert not any("Traceback" in text for text in logs.values())


def test_scene_that_cannot_be_had_ends_at_once(start) -> None:
    simulation = start("-m", "scanpilot_ros.simulation", "world:=nowhere", "robots:=2")
    assert simulation.wait() == 1
    assert "error: world nowhere" in simulation.output
    assert "Traceback" not in simulation.output


def test_demo_reports_those_who_do_not_arrive(start, policy, tmp_path) -> None:
    demo = start(
        "-m", "scanpilot_ros.demo", "--policy", policy, "--robots", "1", "--timeout", "12",
        "--out", tmp_path / "demo.png", "--json", tmp_path / "demo.json",
    )  # fmt: skip
    assert demo.wait(60.0) == 1, demo.output
    assert "0 of 1 arrived without contact" in demo.output
    assert "Traceback" not in demo.output
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    (row,) = json.loads((tmp_path / "demo.json").read_text())["rows"]
    assert not row["reached"]
    assert row["length"] > 0.1
    assert row["smoothness"] > 0.0
