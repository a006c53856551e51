"""Walkers and patrols: where they start, what they keep clear of, and that they get about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot import configuration
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import generate
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.walkers import Patrol, WalkerConfig, Walkers
from scanpilot.sim.world import build_world

SPEC = RobotSpec(
    "test", "differential", Footprint(radius=0.2), Limits(vx=1.0, wz=1.5), Lidar(beams=16, range_max=9.0)
)


def peopled(seeds: list[int], count: int, seed: int = 0, **more: object) -> tuple[Simulator, Walkers]:
    worlds = [generate.clutter(s) for s in seeds]
    config = WalkerConfig(count=count, **more)  # type: ignore[arg-type]
    simulator = Simulator(worlds, SPEC, 3, seed=seed, movers=Walkers.room(config))
    for slot, world in enumerate(worlds):
        space, rng = FreeSpace(world, SPEC.footprint), np.random.default_rng(seeds[slot])
        for i in range(3 * slot, 3 * slot + 3):
            start, _ = space.sample(rng, taken=simulator.poses[3 * slot : i])
            simulator.place([i], start[None])
    walkers = Walkers(simulator, config, seed, streams=seeds)
    for slot in range(len(worlds)):
        walkers.reset(slot)
    return simulator, walkers


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000))
def test_walkers_start_clear_keep_clear_and_get_about(seed: int) -> None:
    simulator, walkers = peopled([seed, seed + 1], 5, seed)
    assert (walkers.movers[:, :, 2] > 0.0).mean() > 0.9
    # Nobody starts on a robot: the simulator's clearance counts walkers.
    assert (simulator.clearance() > 0.04).all()
    start = walkers.movers.copy()
    farthest = np.zeros(start.shape[:2])
    for _ in range(100):
        walkers.step(0.2)
        assert (simulator.clearance() > 0.04).all()
        farthest = np.maximum(farthest, np.hypot(*(walkers.movers - start)[:, :, :2].transpose(2, 0, 1)))
    assert np.median(farthest) > 1.0
    for world, movers in zip(simulator.worlds, walkers.movers, strict=True):
        present = movers[movers[:, 2] > 0.0]
        apart = np.hypot(*(present[:, None, :2] - present[None, :, :2]).transpose(2, 0, 1)) + 9 * np.eye(
            len(present)
        )
        assert apart.min() > 0.5
        assert FreeSpace(world, Footprint(radius=0.25)).is_free(present * (1.0, 1.0, 0.0)).all()


@pytest.mark.parametrize("vary", [False, True])
def test_walkers_are_the_same_in_a_batch_and_alone(vary: bool) -> None:
    _, together = peopled([3, 4], 4, patrolling=3, vary=vary)
    _, alone = peopled([4], 4, patrolling=3, vary=vary)
    for _ in range(40):
        together.step(0.2)
        alone.step(0.2)
    assert np.array_equal(together.movers[1], alone.movers[0])


def test_patrol_goes_round() -> None:
    world = build_world("empty", bounds=(-5.0, -5.0, 5.0, 5.0))
    square = Patrol(((0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)), speed=1.0)
    simulator = Simulator([world], SPEC, 1, movers=1)
    simulator.place([0], np.array([[-4.0, -4.0, 0.0]]))
    walkers = Walkers(simulator, WalkerConfig(patrols=(square,)))
    walkers.reset(0)
    track = []
    for _ in range(100):
        walkers.step(0.1)
        track.append(walkers.movers[0, 0, :2].copy())
    for corner in square.waypoints:
        assert np.hypot(*(np.array(track) - corner).T).min() < 0.15
    # It waits for a robot in its way instead of running into it.
    simulator.place([0], np.array([[1.0, 0.0, 0.0]]))
    for _ in range(100):
        walkers.step(0.1)
        assert simulator.clearance()[0] > 0.04


def test_those_who_patrol_go_to_and_fro() -> None:
    simulator, walkers = peopled([5], 0, patrolling=2)
    start = walkers.movers[0, :, :2].copy()
    assert (walkers.movers[0, :, 2] > 0.0).all()
    away = np.zeros((2, 600))
    for step in range(600):
        walkers.step(0.2)
        assert (simulator.clearance() > 0.04).all()
        away[:, step] = np.hypot(*(walkers.movers[0, :, :2] - start).T)
    for distance in away:
        far = np.flatnonzero(distance > 0.9 * distance.max())
        assert distance.max() > 1.0
        back = far[0] + np.argmin(distance[far[0] :])
        assert distance[back] < 0.15
        # And off again.
        assert distance[back:].max() > 0.5


def test_vary_draws_how_many_there_are_when_a_world_begins() -> None:
    _, walkers = peopled([1], 4, patrolling=3, vary=True)
    seen = set()
    for _ in range(30):
        walkers.reset(0)
        there = walkers.movers[0, :, 2] > 0.0
        seen.add((int(there[:4].sum()), int(there[4:].sum())))
    assert {wander for wander, _ in seen} == set(range(5))
    assert {patrol for _, patrol in seen} == set(range(4))


def test_walkers_come_from_a_configuration() -> None:
    text = "count: 1\npatrolling: 2\npatrols:\n- waypoints: [[0.0, 0.0], [1.0, 2.0]]\n  speed: 0.4\n"
    config = configuration.loads(WalkerConfig, text, "walkers.yaml")
    assert config == WalkerConfig(1, 2, patrols=(Patrol(((0.0, 0.0), (1.0, 2.0)), 0.4),))
    assert Walkers.room(config) == 4


def test_two_who_meet_pass_each_other() -> None:
    world = build_world("empty", bounds=(-5.0, -5.0, 5.0, 5.0))
    there = Patrol(((-3.0, 0.0), (3.0, 0.0)), speed=1.0)
    back = Patrol(((3.0, 0.0), (-3.0, 0.0)), speed=1.0)
    simulator = Simulator([world], SPEC, 1, movers=2)
    simulator.place([0], np.array([[0.0, 4.0, 0.0]]))
    walkers = Walkers(simulator, WalkerConfig(patrols=(there, back)))
    walkers.reset(0)
    for _ in range(80):
        walkers.step(0.1)
        if walkers.movers[0, 0, 0] > 2.5 and walkers.movers[0, 1, 0] < -2.5:
            return
    pytest.fail(f"they did not pass: {walkers.movers[0]}")


def test_bad_configuration_is_named() -> None:
    with pytest.raises(ValueError, match="count"):
        WalkerConfig(count=-1)
    with pytest.raises(ValueError, match="speed"):
        WalkerConfig(min_speed=0.0)
    with pytest.raises(ValueError, match="waypoints"):
        Patrol(())
