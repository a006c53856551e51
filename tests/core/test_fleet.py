"""The simulated fleet: what a step returns, by hand, and what a new episode may not leak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanpilot import checkpoint
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec, ScanConverter, observation_for
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.simulator import SimulatorConfig
from scanpilot.sim.walkers import WalkerConfig
from scanpilot.sim.world import Solid, World, box, build_world
from scanpilot.task import TaskConfig
from scanpilot.types import DoubleArray, InvalidInput, LaserScan, Pose2D, StepResult

SIZE = 8.0


def room(number: int) -> World:
    """Four walls, 8 m by 8 m, and in it a pillar whose place tells the worlds apart."""
    half = SIZE / 2
    walls = [
        box(0.0, half + 0.1, SIZE + 0.4, 0.2),
        box(0.0, -half - 0.1, SIZE + 0.4, 0.2),
        box(half + 0.1, 0.0, 0.2, SIZE + 0.4),
        box(-half - 0.1, 0.0, 0.2, SIZE + 0.4),
        box(-3.0 + 0.5 * (number % 5), -3.5, 0.3, 0.3),
    ]
    return build_world(f"room {number}", [Solid((w,)) for w in walls])


def robot(**changes: Any) -> RobotSpec:
    values: dict[str, Any] = {
        "name": "test",
        "kinematics": "differential",
        "footprint": Footprint(radius=0.2),
        "limits": Limits(vx=1.0, wz=1.0),
        "lidar": Lidar(beams=72, range_max=8.2),
        "control_period": 0.2,
    }
    return RobotSpec(**{**values, **changes})


TASK = TaskConfig(goal_radius=0.3, time_limit=1000, progress=2.0, goal=15.0, collision=-15.0, time=-0.06)


def fleet(
    per_world: int = 1,
    worlds: int = 1,
    spec: RobotSpec | None = None,
    task: TaskConfig = TASK,
    seed: int = 0,
    **config: Any,
) -> SimulatedFleet:
    spec = spec or robot()
    values = {"world_lifetime": 0, "goal_distance": (1.0, 6.0), **config}
    return SimulatedFleet(
        room,
        spec,
        observation_for(spec, beams=36, frames=3),
        task,
        FleetConfig(worlds=worlds, robots_per_world=per_world, **values),
        seed,
    )


def put(one: SimulatedFleet, pose: tuple[float, float, float], goal: tuple[float, float, float]) -> None:
    """Robot 0 at a pose, on its way to a goal."""
    one.simulator.place([0], np.array([pose]))
    one.goals[0] = goal


def drive(one: SimulatedFleet, *action: float) -> StepResult:
    return one.step(np.array([action] * one.num_robots, dtype=np.float32))


STILL = (0.0, 0.0, 0.0)


def test_a_step_straight_ahead_by_hand() -> None:
    one = fleet()
    put(one, (0.0, 1.0, 0.0), (3.0, 1.0, 0.5))
    result = drive(one, 0.5, 0.0, 0.0)
    # 0.5 m/s for 0.2 s: 0.1 m nearer, 2 a metre, -0.06 a step; far from everything.
    assert result.rewards[0] == pytest.approx(0.2 - 0.06, abs=1e-5)
    np.testing.assert_allclose(result.triplets.goal[0], [2.9, 0.0, 0.5], atol=1e-6)
    np.testing.assert_allclose(result.triplets.speed[0], [0.5, 0.0, 0.0], atol=1e-6)
    assert not (result.terminated | result.truncated | result.reached | result.collided).any()
    # Ahead stands the wall, at 4 m.
    ahead = result.triplets.scan[0, -1, 17:19]
    np.testing.assert_allclose(ahead, 3.9, atol=0.02)


def test_the_goal_ends_the_episode_and_its_last_state_is_the_true_one() -> None:
    one = fleet()
    put(one, (0.0, 1.0, 0.0), (0.45, 1.0, 0.0))
    result = drive(one, 1.0, 0.0, 0.0)
    # 0.25 m left of 0.45: reached. 2 * 0.2 + 15 - 0.06
    assert (bool(result.terminated[0]), bool(result.reached[0]), bool(result.truncated[0])) == (
        True,
        True,
        False,
    )
    assert result.rewards[0] == pytest.approx(15.34, abs=1e-4)
    np.testing.assert_allclose(result.triplets.goal[0], [0.25, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(result.info["poses"][0], [0.2, 1.0, 0.0], atol=1e-9)
    # What the robot sees next is another episode.
    seen = one.observe()
    assert np.hypot(*seen.goal[0, :2]) >= 1.0
    assert (seen.scan[0] == seen.scan[0, :1]).all()
    np.testing.assert_array_equal(seen.speed[0], STILL)


def test_contact_ends_the_episode() -> None:
    one = fleet()
    put(one, (3.75, 1.0, 0.0), (-3.0, 1.0, 0.0))
    result = drive(one, 1.0, 0.0, 0.0)
    assert (bool(result.terminated[0]), bool(result.collided[0]), bool(result.reached[0])) == (
        True,
        True,
        False,
    )
    assert result.rewards[0] < -15.0
    assert one.simulator.poses[0, 0] != pytest.approx(3.75, abs=0.1)


def test_a_time_limit_truncates_at_its_step_and_the_count_begins_anew() -> None:
    one = fleet(task=TaskConfig(time_limit=3))
    ends = []
    for _ in range(9):
        result = drive(one, *STILL)
        ends.append(bool(result.truncated[0]))
        assert not result.terminated[0]
        assert bool(result.info["timed_out"][0]) == ends[-1]
    assert ends == [False, False, True] * 3


def test_a_world_that_gives_way_cuts_its_robots_episodes_without_timing_them_out() -> None:
    one = fleet(worlds=2, per_world=2, world_lifetime=4)
    # Ages begin at 0 and 2: the second world gives way at step 2, the first at step 4.
    cuts = []
    for _ in range(4):
        before = one.goals.copy()
        result = drive(one, *STILL)
        cuts.append(result.truncated.tolist())
        assert not result.info["timed_out"].any()
        assert ((one.goals != before).any(1) == result.truncated).all()
    assert cuts == [[False] * 4, [False, False, True, True], [False] * 4, [True, True, False, False]]
    assert one.world_numbers == [3, 2]
    assert [one.world_of(i).name for i in range(4)] == ["room 3", "room 3", "room 2", "room 2"]


def test_robots_keep_what_they_executed() -> None:
    result = drive(fleet(), 2.0, 1.0, -3.0)
    assert result.actions.tolist() == [[1.0, 0.0, -1.0]]


def test_an_action_that_is_not_finite_moves_nobody() -> None:
    one = fleet()
    before = one.simulator.poses.copy()
    with pytest.raises(InvalidInput):
        drive(one, math.nan, 0.0, 0.0)
    np.testing.assert_array_equal(one.simulator.poses, before)


def test_a_successors_older_frames_are_the_states_newer_ones_always() -> None:
    # The replay buffer stores only a successor's newest frame and relies on this.
    one = fleet(worlds=3, per_world=4, task=TaskConfig(time_limit=9), world_lifetime=11)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        before = one.observe()
        result = one.step(rng.uniform([0, -1, -1], 1, (12, 3)).astype(np.float32))
        np.testing.assert_array_equal(result.triplets.scan[:, :-1], before.scan[:, 1:])
        over = result.terminated | result.truncated
        ended += int(over.sum())
        after = one.observe()
        # Who goes on sees the successor itself; who begins sees one frame, k times.
        for array in ("scan", "goal", "speed"):
            np.testing.assert_array_equal(
                getattr(after, array)[~over], getattr(result.triplets, array)[~over]
            )
        assert (after.scan[over] == after.scan[over][:, :1]).all()
        assert not (result.terminated & result.truncated).any()
        assert (result.terminated == (result.reached | result.collided)).all()
    assert ended > 50


def test_what_a_step_returned_does_not_change_afterwards() -> None:
    one = fleet(per_world=2, task=TaskConfig(time_limit=2))
    result = drive(one, 0.5, 0.0, 0.2)
    arrays = [
        result.triplets.scan,
        result.triplets.goal,
        result.actions,
        result.rewards,
        *result.info.values(),
    ]
    copies = [a.copy() for a in arrays]
    for _ in range(5):
        drive(one, 1.0, 0.0, -1.0)
    for a, b in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_starts_and_goals_are_free_apart_and_as_far_as_stated() -> None:
    one = fleet(worlds=2, per_world=6, goal_distance=(2.0, 5.0))
    for _ in range(3):
        distance = np.hypot(*(one.goals - one.starts)[:, :2].T)
        assert ((distance >= 2.0 - 1e-9) & (distance <= 5.0 + 1e-9)).all()
        assert (np.abs(one.starts[:, :2]) < SIZE / 2 - 0.2).all()
        assert (np.abs(one.goals[:, :2]) < SIZE / 2 - 0.2).all()
        for world in range(2):
            mine = one.starts[6 * world : 6 * world + 6, :2]
            gaps = np.hypot(*(mine[:, None] - mine[None]).transpose(2, 0, 1)) + 9.0 * np.eye(6)
            assert gaps.min() > 0.4
        one._place(0, np.arange(6))
        one._place(1, np.arange(6))


def test_simulation_and_ros_see_the_same_bit_for_bit() -> None:
    # The same ranges as a LaserScan, whose header is float32, through the policy node's converter.
    spec = robot(lidar=Lidar(beams=360, range_max=8.2, yaw=math.pi / 2))
    one = fleet(per_world=4, spec=spec)
    lidar = spec.lidar
    convert = ScanConverter(one.observation, Pose2D(0.0, 0.0, float(np.float32(lidar.yaw))))
    for ranges, seen in zip(one.simulator.scan(), one.observe().scan[:, -1], strict=True):
        header = [
            float(np.float32(v))
            for v in (lidar.angle_min, lidar.angle_increment, lidar.range_min, lidar.range_max)
        ]
        np.testing.assert_array_equal(convert(LaserScan(ranges, *header)), seen)


def test_beyond_the_lidar_there_is_nothing_in_simulation() -> None:
    # The far corners are beyond 5.3 m, whose float32 rounds up or down all the same.
    for range_max in (5.2, 5.3, 5.35):
        one = fleet(spec=robot(lidar=Lidar(beams=72, range_max=range_max)))
        put(one, (-3.0, 3.0, 0.0), (3.0, 3.0, 0.0))
        scan = drive(one, *STILL).triplets.scan[0, -1]
        assert scan.max() == one.observation.range_max
        assert (scan[scan < one.observation.range_max] < range_max - 0.001).all()


def rolled(one: SimulatedFleet, steps: int, seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(steps):
        actions = rng.uniform([0, -1, -1], 1, (one.num_robots, 3)).astype(np.float32)
        result = one.step(actions)
        out += [
            result.triplets.scan,
            result.triplets.goal,
            result.rewards,
            result.terminated,
            one.observe().scan,
        ]
    return out


NOISY = {
    "worlds": 2,
    "per_world": 3,
    "world_lifetime": 7,
    "task": TaskConfig(time_limit=5),
    "simulator": SimulatorConfig(scan_noise=0.02, scan_dropout=0.05),
}


def test_the_seed_decides_everything() -> None:
    first, second, third = (rolled(fleet(seed=s, **NOISY), 12) for s in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))


def test_a_restored_fleet_goes_on_exactly(tmp_path: Path) -> None:
    one = fleet(seed=4, **NOISY)
    rolled(one, 9)
    checkpoint.write_state(tmp_path / "state", one.state_dict())
    other = fleet(seed=4, **NOISY)
    rolled(other, 3, seed=6)
    other.load_state_dict(checkpoint.read_state(tmp_path / "state"))
    for name in ("scan", "goal", "speed"):
        np.testing.assert_array_equal(getattr(one.observe(), name), getattr(other.observe(), name))
    for a, b in zip(rolled(one, 15), rolled(other, 15), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "bad", [{"worlds": 0}, {"robots_per_world": 0}, {"world_lifetime": -1}, {"goal_distance": (3.0, 2.0)}]
)
def test_impossible_fleets_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        FleetConfig(**bad)


def test_a_fleet_says_what_it_is_made_of() -> None:
    one = fleet(worlds=2, per_world=3)
    assert (one.num_robots, len(one.observe())) == (6, 6)
    assert isinstance(one.observation, ObservationSpec)
    assert one.observe().scan.shape == (6, 3, 36)
    assert one.robot.name == "test"
    one.close()


def test_a_fleet_among_walkers_goes_on_exactly_and_its_robots_see_them(tmp_path: Path) -> None:
    def made() -> SimulatedFleet:
        return fleet(per_world=2, worlds=2, walkers=WalkerConfig(count=3), world_lifetime=12)

    one, other, ahead = made(), made(), np.tile(np.float32([0.4, 0.0, 0.3]), (4, 1))
    alone = fleet(per_world=2, worlds=2, world_lifetime=12)
    assert one.observe().scan.min() < alone.observe().scan.min()
    before = one.simulator.movers()
    for _ in range(9):
        one.step(ahead)
    assert not np.array_equal(before, one.simulator.movers())
    checkpoint.write_state(tmp_path / "state", one.state_dict())
    other.load_state_dict(checkpoint.read_state(tmp_path / "state"))
    for _ in range(20):
        a, b = one.step(ahead), other.step(ahead)
        assert np.array_equal(a.triplets.scan, b.triplets.scan)
        assert np.array_equal(one.simulator.movers(), other.simulator.movers())


def test_a_mission_prescribes_start_and_goal() -> None:
    def mission(number: int) -> tuple[DoubleArray, DoubleArray]:
        return np.array([-2.0, float(number), 0.5]), np.array([2.0, 1.0, 0.0])

    config = FleetConfig(worlds=2, robots_per_world=1)
    robots = SimulatedFleet(room, robot(), observation_for(robot()), TASK, config, 0, mission)
    assert robots.starts.tolist() == [[-2.0, 0.0, 0.5], [-2.0, 1.0, 0.5]]
    assert robots.goals.tolist() == [[2.0, 1.0, 0.0]] * 2
    with pytest.raises(ValueError, match="one robot a world"):
        SimulatedFleet(room, robot(), observation_for(robot()), TASK, FleetConfig(worlds=1), 0, mission)
