"""Every term of the reward, and which ending wins, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scanpilot import task
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.task import TaskConfig, judge, suited_to

CONFIG = TaskConfig(
    goal_radius=0.3,
    time_limit=10,
    progress=2.0,
    goal=15.0,
    collision=-20.0,
    time=-0.05,
    near=-0.4,
    near_distance=0.3,
)


def judge_one(
    before: float = 5.0, after: float = 5.0, clearance: float = 9.0, contact: bool = False, steps: int = 1
) -> task.Outcome:
    return judge(
        np.array([before]),
        np.array([after]),
        np.array([clearance]),
        np.array([contact]),
        np.array([steps]),
        CONFIG,
    )


def ending(outcome: task.Outcome) -> tuple[bool, bool, bool, bool]:
    return (
        bool(outcome.reached[0]),
        bool(outcome.collided[0]),
        bool(outcome.truncated[0]),
        bool(outcome.terminated[0]),
    )


def test_progress_pays_per_metre_and_takes_back() -> None:
    # 2 per metre: 5.0 -> 4.75 m gives 0.5; 4.75 -> 5.0 m takes it.
    np.testing.assert_allclose(
        task.progress_reward(np.array([5.0, 4.75]), np.array([4.75, 5.0]), CONFIG), [0.5, -0.5]
    )


def test_progress_over_an_episode_does_not_depend_on_the_way() -> None:
    distances = np.array([5.0, 5.7, 3.1, 4.0, 1.0])
    # 2 * (5 - 1)
    assert task.progress_reward(distances[:-1], distances[1:], CONFIG).sum() == pytest.approx(8.0)


def test_goal_collision_and_time_pay_once_each() -> None:
    flags = np.array([True, False])
    assert task.goal_reward(flags, CONFIG).tolist() == [15.0, 0.0]
    assert task.collision_reward(flags, CONFIG).tolist() == [-20.0, 0.0]
    assert task.time_reward(2, CONFIG).tolist() == [-0.05, -0.05]


def test_near_grows_linearly_from_its_distance_to_contact() -> None:
    # -0.4 * (1 - c / 0.3) for c = 0, 0.15, 0.3, 1 m, and no more than that when overlapping.
    values = task.near_reward(np.array([0.0, 0.15, 0.3, 1.0, -0.2]), CONFIG)
    np.testing.assert_allclose(values, [-0.4, -0.2, 0.0, 0.0, -0.4], atol=1e-12)


def test_reward_is_the_sum_of_its_terms() -> None:
    # progress 2 * 0.1, time -0.05, near -0.4 * (1 - 0.1 / 0.3) = -0.2666667
    outcome = judge_one(before=1.0, after=0.9, clearance=0.1)
    assert outcome.rewards.dtype == np.float32
    assert outcome.rewards[0] == pytest.approx(0.2 - 0.05 - 0.2666667, abs=1e-6)
    # progress 2 * 0.2, goal 15, time -0.05
    assert judge_one(before=0.4, after=0.2).rewards[0] == pytest.approx(0.4 + 15.0 - 0.05, abs=1e-5)
    # no progress, collision -20, time -0.05, near -0.4 at contact
    assert judge_one(clearance=0.0, contact=True).rewards[0] == pytest.approx(-20.45, abs=1e-5)


def test_nothing_ends_on_the_way() -> None:
    assert ending(judge_one(steps=9)) == (False, False, False, False)


def test_goal_terminates_inside_its_radius_only() -> None:
    assert ending(judge_one(after=0.29)) == (True, False, False, True)
    assert ending(judge_one(after=0.3)) == (False, False, False, False)


def test_contact_at_the_goal_is_a_collision_without_the_goal_reward() -> None:
    outcome = judge_one(before=0.2, after=0.2, contact=True)
    assert ending(outcome) == (False, True, False, True)
    assert outcome.rewards[0] == pytest.approx(-20.05)


def test_time_limit_truncates_at_its_last_step() -> None:
    assert ending(judge_one(steps=10)) == (False, False, True, False)


def test_terminal_states_at_the_time_limit_are_not_truncated() -> None:
    # Else both flags stand, and a learner that looks at the wrong one bootstraps past the end.
    assert ending(judge_one(after=0.1, steps=10)) == (True, False, False, True)
    assert ending(judge_one(contact=True, steps=10)) == (False, True, False, True)


@pytest.mark.parametrize("bad", [{"goal_radius": 0.0}, {"time_limit": 0}, {"near_distance": 0.0}])
def test_impossible_tasks_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        TaskConfig(**bad)  # type: ignore[arg-type]


def test_a_slow_robot_has_the_same_task_in_smaller_steps() -> None:
    def robot(vx: float, period: float) -> RobotSpec:
        limits, lidar = Limits(vx=vx, wz=1.0), Lidar(beams=8)
        return RobotSpec("r", "differential", Footprint(radius=0.2), limits, lidar, period)

    config = TaskConfig(time_limit=300, time=-0.06, near=-0.8)
    assert suited_to(config, robot(1.0, 0.2)) == config
    # 0.05 m a step, a quarter of 0.2 m: four times as many steps, each at a quarter of the cost.
    slow = suited_to(config, robot(0.25, 0.2))
    assert slow.time_limit == 1200
    assert (slow.time, slow.near) == pytest.approx((-0.015, -0.2))
    assert (slow.goal, slow.collision, slow.progress) == (config.goal, config.collision, config.progress)
    # 0.4 m a step.
    assert suited_to(config, robot(2.0, 0.2)).time_limit == 150
