"""What ``bench sim`` runs and tells. How fast anything is, is no test's business."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scanpilot.sim import benchmark, peers, throughput
from scanpilot.sim.benchmark import Sizes
from scanpilot.types import InvalidInput


def test_robots_share_worlds_as_stated_or_as_suits_them() -> None:
    cases = Sizes(robots=(1, 44, 4096, 100)).cases()
    assert list(cases) == [("clutter", 1, 1), ("clutter", 44, 1), ("clutter", 4096, 512), ("clutter", 100, 1)]
    stated = Sizes(robots=(8, 12), worlds=(1, 4, 8), world=("maze", "office"))
    assert [case for case in stated.cases() if case[0] == "maze"] == [
        ("maze", 8, 1),
        ("maze", 8, 4),
        ("maze", 8, 8),
        ("maze", 12, 1),
        ("maze", 12, 4),
    ]
    full = [(robots, beams) for _, robots, _ in benchmark.FULL.cases() for beams in benchmark.FULL.beams]
    assert len(full) == 20


def test_sizes_that_make_no_sense_are_named() -> None:
    with pytest.raises(InvalidInput, match="beams 0: expected at least 1"):
        Sizes(beams=(0,))
    with pytest.raises(InvalidInput, match="do not divide evenly"):
        Sizes(robots=(7,), worlds=(2, 3))
    crowd = Sizes(robots=(2000,), worlds=(1,), world=("maze:1",), beams=(4,))
    with pytest.raises(InvalidInput, match="2000 robots do not fit"):
        list(benchmark.run(crowd, 0.01))


def test_rows_say_what_was_run_and_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "missing", lambda: ["IR-SIM", "navground"])
    sizes = Sizes(robots=(2, 4), beams=(16,), threads=(1, 2), worlds=(2,), world=("clutter", "demo"))
    rows = list(benchmark.run(sizes, 0.05))
    assert [(r.world, r.robots, r.worlds, r.beams, r.threads) for r in rows] == [
        (world, robots, 2, 16, threads)
        for world in ("clutter-2-0", "demo")
        for robots in (2, 4)
        for threads in (1, 2)
    ]
    for row in rows:
        assert row.beams_per_s == pytest.approx(16 * row.robot_steps_per_s)
        assert row.scans_per_s is not None
        # The whole step takes longer than its scan.
        assert row.scans_per_s > row.robot_steps_per_s > 0.0
    document = json.loads(json.dumps(benchmark.as_json(rows)))
    keys = {"robots", "beams", "threads", "worlds", "world", "robot_steps_per_s", "beams_per_s", "simulator"}
    assert all(keys <= row.keys() for row in document["rows"])
    assert document["peers_not_installed"] == ["IR-SIM", "navground"]
    benchmark.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_ratios_are_to_ours_in_the_same_scene() -> None:
    scene = throughput.scene(benchmark.worlds_of("clutter", 1), 2, throughput.benchmark_robot(8))
    (ours,) = throughput.in_turns([throughput.Driving(scene, scene)], 0.02)
    ours = replace(ours, robot_steps_per_s=300.0)
    peer = replace(ours, simulator="other 1.0", robot_steps_per_s=3.0)
    elsewhere = replace(peer, beams=9)
    rows = benchmark.as_json([ours, peer, elsewhere])["rows"]
    assert [row.get("scanpilot_is_times") for row in rows] == [None, pytest.approx(100.0), None]


@pytest.mark.parametrize("name", ["IR-SIM", "navground"])
def test_peers_see_what_we_see_and_drive_as_we_do(name: str) -> None:
    if name in peers.missing():
        pytest.skip(f"{name} is not installed: pip install 'scanpilot[peers]'")
    # At once at the commanded speed, because not all of them limit accelerations.
    robot = throughput.benchmark_robot(60)
    robot = replace(robot, limits=replace(robot.limits, ax=1e4, awz=1e4))
    scene = throughput.scene(benchmark.worlds_of("clutter", 1), 4, robot)
    found = peers.installed(scene.worlds[0], robot, scene.poses, throughput.PERIOD)
    peer = next(peer for peer in found if peer.name.startswith(name))
    for command in ((0.0, 0.0, 0.0), (0.2, 0.0, 0.4), (0.2, 0.0, -0.8)):
        peer.step(np.tile(command, (4, 1)), throughput.PERIOD)
        scene.step(np.tile(command, (4, 1)), throughput.PERIOD)
        if peer.rescan is not None:
            # Its step scans before it moves.
            peer.rescan()
        difference = np.abs(peer.scan() - scene.scan())
        # Beams that graze a corner may differ.
        assert np.median(difference) < 2e-3
        assert np.quantile(difference, 0.95) < 0.05
