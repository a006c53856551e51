"""Metrics by hand, episodes counted fairly, suites that repeat to the last digit."""

import numpy as np
import pytest

from scanpilot import resources
from scanpilot.evaluation.episodes import Episode, run_episodes
from scanpilot.evaluation.metrics import (
    action_change,
    bootstrap_interval,
    path_efficiency,
    smoothness,
    summarise,
    wilson_interval,
)
from scanpilot.evaluation.suites import SUITES, run_suite
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import observation_for
from scanpilot.robot import load_robot
from scanpilot.sim import sources
from scanpilot.sim.straight import straight_commands
from scanpilot.sim.world import build_world
from scanpilot.task import TaskConfig
from scanpilot.types import FloatArray, Triplet

ROBOT = load_robot(resources.find("robot", "generic_diff"))
OBSERVATION = observation_for(ROBOT, beams=36)
ACTIVE = np.array([True, False, True])


def _episode(outcome: str = "success", shortest: float = 4.0) -> Episode:
    """Straight on for 4 m in eight steps of 0.2 s, then one of 1 m back: 5 m driven to a goal 3 m away."""
    x = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 3.0])
    actions = np.zeros((9, 3), dtype=np.float32)
    actions[:, 0] = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    return Episode(
        outcome=outcome,
        period=0.2,
        poses=np.stack((x, np.zeros(10), np.zeros(10)), axis=1),
        actions=actions,
        goal=np.array([3.0, 0.0, 0.0]),
        min_clearance=0.1,
        shortest=shortest,
        world=build_world("empty"),
        top_speed=2.0,
    )


def test_wilson_interval_by_hand() -> None:
    # p = 0.5, n = 4, z = 1.96: centre (0.5 + 3.8416/8) / (1 + 3.8416/4) = 0.5;
    # half 1.96/1.9604 * sqrt(0.25/4 + 3.8416/64) = 0.99980 * 0.35002 = 0.34995
    assert wilson_interval(2, 4) == pytest.approx((0.15005, 0.84995), abs=1e-4)


def test_wilson_interval_of_all_successes_does_not_promise_certainty() -> None:
    low, high = wilson_interval(100, 100)
    # 1 / (1 + 3.8416/100)
    assert low == pytest.approx(0.96301, abs=1e-4)
    assert high == pytest.approx(1.0)


def test_bootstrap_interval_is_seeded_and_holds_the_mean() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    # 1.96 / sqrt(400) = 0.098 to either side
    assert low == pytest.approx(values.mean() - 0.098, abs=0.03)
    assert high == pytest.approx(values.mean() + 0.098, abs=0.03)


def test_smoothness_of_one_frequency_by_hand() -> None:
    # cos(2 pi 2 t / 8) sampled at 8 Hz: |rfft| is 4 at 2 Hz and 0 at the other four frequencies.
    signal = np.cos(2.0 * np.pi * 2.0 * np.arange(8) / 8.0)
    # 2 / (5 * 8) * 4 * 2
    assert smoothness(signal, 8.0) == pytest.approx(0.4)


def test_smoothness_of_a_constant_is_zero() -> None:
    assert smoothness(np.full(10, 0.7), 5.0) == pytest.approx(0.0, abs=1e-12)


def test_an_episode_measures_itself() -> None:
    episode = _episode()
    assert episode.seconds == pytest.approx(1.8)
    assert episode.length == pytest.approx(5.0)
    assert episode.straight == pytest.approx(3.0)
    assert episode.detour == pytest.approx(4.0 / 3.0)


def test_path_efficiency_is_spl() -> None:
    assert path_efficiency(_episode()) == pytest.approx(4.0 / 5.0)
    assert path_efficiency(_episode("collision")) == 0.0
    # A driven path shorter than the grid's shortest one is not more than perfect.
    assert path_efficiency(_episode(shortest=6.0)) == 1.0


def test_action_change_by_hand_over_active_components_only() -> None:
    actions = np.array([[0.0, 5.0, 0.0], [1.0, -5.0, 0.5], [1.0, 5.0, 0.0]], dtype=np.float32)
    # |1| + |0.5| + |0| + |0.5| over four differences
    assert action_change(actions, ACTIVE) == pytest.approx(0.5)


def test_a_summary_counts_time_outs_apart() -> None:
    episodes = [_episode(), _episode("collision"), _episode("timeout"), _episode("timeout")]
    summary = summarise(episodes, ACTIVE)
    assert (summary["success"], summary["collision"], summary["timeout"]) == (0.25, 0.25, 0.5)
    assert summary["time"] == pytest.approx(1.8)
    assert summary["path_efficiency"] == pytest.approx(0.2)
    assert [part["episodes"] for part in summary["by_detour"]] == [0, 0, 4, 0]


def test_a_summary_without_success_has_no_time() -> None:
    assert summarise([_episode("timeout")], ACTIVE)["time"] is None


def _straight(triplets: Triplet) -> FloatArray:
    goal = triplets.goal.astype(np.float64)
    twist = straight_commands(np.zeros_like(goal), goal, ROBOT)
    return (twist / (ROBOT.limits.vx, 1.0, ROBOT.limits.wz)).astype(np.float32)


def test_a_suite_repeats_to_the_last_digit_and_differs_by_seed_and_stream() -> None:
    def run(seed: int, stream: sources.Stream = "test") -> list[Episode]:
        return run_suite(SUITES["crowd"], _straight, ROBOT, OBSERVATION, 10, seed, stream)

    first, again, other, validation = run(0), run(0), run(1), run(0, "validation")
    assert len(first) == 10
    assert all(np.array_equal(a.poses, b.poses) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].poses[0], other[0].poses[0])
    assert not np.array_equal(first[0].poses[0], validation[0].poses[0])


def test_each_robot_counts_once_however_often_its_neighbours_end() -> None:
    config = FleetConfig(worlds=2, robots_per_world=4, world_lifetime=0)
    fleet = SimulatedFleet(
        sources.worlds("clutter", "test", 5), ROBOT, OBSERVATION, TaskConfig(time_limit=20), config, 5
    )
    starts = fleet.starts.copy()
    episodes = run_episodes(fleet, _straight, 7)
    assert len(episodes) == 7
    assert all(np.array_equal(e.poses[0], start) for e, start in zip(episodes, starts[:7], strict=True))
    assert all(len(e.actions) <= 20 for e in episodes)
    assert all(len(e.poses) == len(e.actions) + 1 for e in episodes)
    assert {e.outcome for e in episodes} <= {"success", "collision", "timeout"}


def test_more_episodes_than_robots_are_refused() -> None:
    config = FleetConfig(worlds=1, robots_per_world=2, world_lifetime=0)
    fleet = SimulatedFleet(sources.worlds("clutter", "test", 0), ROBOT, OBSERVATION, TaskConfig(), config, 0)
    with pytest.raises(ValueError, match="3 episodes asked of a fleet of 2"):
        run_episodes(fleet, _straight, 3)


def test_a_collision_is_recorded_where_it_happened() -> None:
    """A robot sent straight through a wall ends at the wall, touching, with the collision as its outcome."""
    config = FleetConfig(worlds=1, robots_per_world=8, world_lifetime=0)
    fleet = SimulatedFleet(
        sources.worlds("clutter", "test", 2), ROBOT, OBSERVATION, TaskConfig(time_limit=60), config, 2
    )
    ended = [e for e in run_episodes(fleet, _straight, 8) if e.outcome == "collision"]
    assert ended
    assert all(e.min_clearance < 0.01 for e in ended)
