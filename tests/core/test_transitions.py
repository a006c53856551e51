"""A stamped stream becomes steps and episodes; values by hand, and against a simulated fleet's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.offline import buffer_of, sample_both
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.replay_file import ReplayFile, ReplayFileError, ReplayWriter
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import generate
from scanpilot.task import TaskConfig
from scanpilot.transitions import (
    ActionSource,
    Assembler,
    Commanded,
    ContactSource,
    Episode,
    Event,
    GoalSet,
    GoalSource,
    Step,
    Touched,
    TransitionConfig,
    TransitionMaker,
    signed_distance,
)
from scanpilot.types import LaserScan, Odometry, Pose2D, Twist2D

ROBOT = RobotSpec(
    name="box",
    kinematics="differential",
    footprint=Footprint(radius=0.2),
    limits=Limits(vx=1.0, wz=2.0),
    lidar=Lidar(beams=8, range_max=9.0),
    control_period=0.2,
)
SPEC = ObservationSpec(beams=8, frames=3, range_max=10.0)
TASK = TaskConfig(goal_radius=0.3, time_limit=50, near=0.0)


def scan(stamp: float, distance: float = 5.0) -> LaserScan:
    ranges = np.full(8, distance, dtype=np.float32)
    return LaserScan(ranges, -math.pi, math.pi / 4, 0.1, 9.0, stamp)


def straight(seconds: float, speed: float = 0.5, begin: float = 0.0) -> list[Event]:
    """Along x at a constant speed: odometry at 20 Hz, scans at 10 Hz, commands at 5 Hz."""
    found: list[Event] = []
    for i in range(round(seconds * 20) + 1):
        at = begin + 0.05 * i
        x = speed * 0.05 * i
        found.append(Odometry(Pose2D(x, 0.0, 0.0), Twist2D(speed, 0.0, 0.0), at))
        if i % 2 == 0:
            # Each scan its own distance, to tell them apart.
            found.append(scan(at, 5.0 - 0.01 * i))
        if i % 4 == 0:
            found.append(Commanded(at, Twist2D(speed, 0.0, 0.1)))
    return found


def steps_of(events: Iterable[Event], config: TransitionConfig | None = None) -> tuple[list[Step], Assembler]:
    assembler = Assembler(ROBOT, SPEC, config=config)
    steps = [step for event in events for step in assembler.add(event)]
    return steps + assembler.finish(), assembler


def episodes_of(events: Iterable[Event], config: TransitionConfig | None = None) -> list[Episode]:
    maker = TransitionMaker(ROBOT, SPEC, TASK, config=config)
    done = [episode for event in events for episode in maker.add(event)]
    return done + maker.finish()


def test_steps_of_a_straight_drive() -> None:
    steps, assembler = steps_of(straight(2.0))
    assert len(steps) == 10
    assert not assembler.cuts
    for i, step in enumerate(steps):
        assert step.before.stamp == pytest.approx(0.2 * i)
        assert step.after.stamp == pytest.approx(0.2 * (i + 1))
        assert step.before.pose == pytest.approx((0.1 * i, 0.0, 0.0))
        # 0.5 of 1 m/s forward, 0.1 of 2 rad/s.
        np.testing.assert_allclose(step.action, (0.5, 0.0, 0.05), atol=1e-6)
        assert step.action_source is ActionSource.COMMAND
        assert step.contact is ContactSource.NONE
    # The newest scan of tick i lies 4 odometry steps on from that of tick i - 1; the first fills the stack.
    np.testing.assert_allclose(steps[0].before.frames[:, 0], (5.0, 5.0, 5.0))
    np.testing.assert_allclose(steps[0].after.frames[:, 0], (5.0, 5.0, 4.96), atol=1e-6)
    np.testing.assert_allclose(steps[5].before.frames[:, 0], (4.88, 4.84, 4.80), atol=1e-6)
    assert steps[5].before.clearance == pytest.approx(4.6, abs=1e-6)


def test_what_comes_out_does_not_depend_on_the_order_of_arrival() -> None:
    events = straight(3.0)
    rng = np.random.default_rng(0)
    late = [event.stamp + rng.uniform(0.0, 0.4) for event in events]
    shuffled = [events[i] for i in np.argsort(late)]
    assert shuffled != events
    _assert_same_steps(steps_of(events)[0], steps_of(shuffled)[0])


def _assert_same_steps(a: Sequence[Step], b: Sequence[Step]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        for state, same in ((one.before, other.before), (one.after, other.after)):
            np.testing.assert_array_equal(state.frames, same.frames)
            assert (state.stamp, state.pose, state.speed) == (same.stamp, same.pose, same.speed)
        np.testing.assert_array_equal(one.action, other.action)


def test_action_is_the_mean_of_the_commands_in_force() -> None:
    events = [e for e in straight(1.0) if not isinstance(e, Commanded)]
    # In force for 0.05 s of the first period, then 1.0 m/s for the other 0.15 s.
    events += [Commanded(0.0, Twist2D(0.2, 0.0, 0.0)), Commanded(0.05, Twist2D(1.0, 0.0, 0.0))]
    steps, _ = steps_of(sorted(events, key=lambda e: e.stamp))
    assert steps[0].action[0] == pytest.approx(0.25 * 0.2 + 0.75 * 1.0)
    assert steps[1].action[0] == pytest.approx(1.0)


def test_a_command_holds_until_its_timeout_and_odometry_says_the_rest() -> None:
    events = [e for e in straight(2.0) if not isinstance(e, Commanded) or e.stamp < 0.3]
    steps, _ = steps_of(events, TransitionConfig(command_timeout=0.5))
    sources = [step.action_source for step in steps]
    # The last command is of 0.2 s: in force until 0.7 s, so it does not cover the period from 0.6 s on.
    assert sources == [ActionSource.COMMAND] * 3 + [ActionSource.ODOMETRY] * 7
    assert steps[-1].action == pytest.approx((0.5, 0.0, 0.0))


@pytest.mark.parametrize("kind", [LaserScan, Odometry])
def test_no_step_across_a_gap(kind: type) -> None:
    events = [e for e in straight(4.0) if not (isinstance(e, kind) and 1.5 < e.stamp < 2.2)]
    steps, assembler = steps_of(events)
    assert list(assembler.cuts) == [f"gap in {'scan' if kind is LaserScan else 'odometry'}"]
    assert {step.segment for step in steps} == {0, 1}
    before = [s for s in steps if s.segment == 0]
    after = [s for s in steps if s.segment == 1]
    # Up to 0.35 s without news are allowed.
    assert before[-1].after.stamp <= 1.5 + 0.35 + 1e-6
    assert after[0].before.stamp >= 2.2 - 1e-6
    # The stack begins anew: it does not hold scans from before the gap.
    assert np.ptp(after[0].before.frames) == 0.0
    assert after[0].before.first == after[0].before.number


def test_a_teleport_cuts() -> None:
    events: list[Event] = [
        dataclasses.replace(e, pose=Pose2D(e.pose.x + 3.0, 0.0, 0.0))
        if isinstance(e, Odometry) and e.stamp > 1.11
        else e
        for e in straight(3.0)
    ]
    steps, assembler = steps_of(events)
    assert assembler.cuts == {"odometry jumped": 1}
    assert all(abs(s.after.pose.x - s.before.pose.x) < 0.2 for s in steps)
    assert {step.segment for step in steps} == {0, 1}


def test_a_clock_that_jumps_back_cuts_and_goes_on() -> None:
    steps, assembler = steps_of([*straight(2.0, begin=100.0), *straight(2.0)])
    assert assembler.cuts["clock jumped back"] == 1
    assert len(steps) == 20
    assert steps[10].before.stamp == pytest.approx(0.0)
    assert steps[9].segment != steps[10].segment


def test_driving_backwards_is_no_action_and_cuts() -> None:
    events = [
        Commanded(e.stamp, Twist2D(-0.3, 0.0, 0.0)) if isinstance(e, Commanded) and 0.9 < e.stamp < 1.5 else e
        for e in straight(3.0)
    ]
    steps, assembler = steps_of(events)
    assert assembler.cuts["driven backwards"] >= 1
    assert not any(0.95 < step.before.stamp < 1.35 for step in steps)
    assert all(step.action[0] == pytest.approx(0.5) for step in steps)


def test_a_base_that_is_told_too_much_does_what_it_can() -> None:
    events = [
        Commanded(e.stamp, Twist2D(1.7, 0.0, 5.0)) if isinstance(e, Commanded) else e
        for e in straight(2.0, speed=1.0)
    ]
    steps, assembler = steps_of(events)
    assert not assembler.cuts
    assert all(step.action == pytest.approx((1.0, 0.0, 1.0)) for step in steps)
    # What was faster than it can be is another robot's.
    steps, assembler = steps_of(straight(2.0, speed=1.5))
    assert not steps
    assert assembler.cuts["faster than the robot's limits"] >= 1


def test_a_scan_without_any_finite_range_is_not_looked_at() -> None:
    events: list[Event] = [
        scan(e.stamp, math.inf) if isinstance(e, LaserScan) and 1.0 < e.stamp < 1.3 else e
        for e in straight(3.0)
    ]
    steps, assembler = steps_of(events)
    assert assembler.cuts["scan without any finite range"] >= 1
    assert not any(step.before.frames.max() >= SPEC.range_max for step in steps)


def test_a_goal_that_was_set_is_rewarded_by_the_task() -> None:
    goal = GoalSet(0.0, Pose2D(1.05, 0.0, 0.0))
    (episode,) = episodes_of([goal, *straight(3.0)], TransitionConfig(goals="topic"))
    # At 0.1 m a step from 0 on, nearer than 0.3 m to x = 1.05 for the first time at x = 0.8: 8 steps.
    assert len(episode) == 8
    assert episode.goal_source is GoalSource.TOPIC
    np.testing.assert_allclose(episode.states.goal[:, 0], 1.05 - 0.1 * np.arange(8), atol=1e-6)
    # A robot of 1 m/s and 0.2 s takes the numbers as they are: 2 a metre, -0.06 a step, 15 for the goal.
    np.testing.assert_allclose(episode.result.rewards[:-1], 0.2 - 0.06, atol=1e-5)
    assert episode.result.rewards[-1] == pytest.approx(0.2 - 0.06 + 15.0, abs=1e-5)
    np.testing.assert_array_equal(episode.result.terminated, [False] * 7 + [True])
    assert not episode.result.truncated.any()


def test_a_goal_that_is_not_reached_ends_truncated() -> None:
    (episode,) = episodes_of([GoalSet(0.0, Pose2D(9.0, 0.0, 0.0)), *straight(2.0)])
    assert len(episode) == 10
    assert not episode.result.terminated.any()
    np.testing.assert_array_equal(episode.result.truncated, [False] * 9 + [True])


def test_hindsight_goals_are_places_where_the_robot_was_later() -> None:
    episodes = episodes_of(straight(20.0))
    assert sum(len(e) for e in episodes) > 90
    for episode in episodes:
        if episode.goal_source is GoalSource.HINDSIGHT:
            assert episode.goal.x > episode.steps[0].before.pose.x
            assert episode.result.reached[-1]
            assert not episode.result.truncated.any()
        else:
            assert episode is episodes[-1]
            assert episode.result.truncated[-1]
        assert episode.goal.x <= 10.0 + 2.0
    again = episodes_of(straight(20.0))
    assert [e.goal for e in again] == [e.goal for e in episodes]


def test_a_robot_that_stands_still_teaches_nothing() -> None:
    assert episodes_of(straight(20.0, speed=0.0)) == []


def contact_ends(events: list[Event], contacts: tuple[str, ...]) -> list[Episode]:
    config = TransitionConfig(contacts=contacts)  # type: ignore[arg-type]
    return [e for e in episodes_of(events, config) if e.result.collided[-1]]


def test_contact_by_topic_ends_the_episode_and_what_begins_in_contact_is_left_out() -> None:
    touches: list[Event] = [Touched(0.05 * i, 2.02 < 0.05 * i < 3.0) for i in range(100)]
    events = sorted([*straight(5.0), *touches], key=lambda e: e.stamp)
    ended = contact_ends(events, ("topic",))
    assert GoalSource.AHEAD in {e.goal_source for e in ended}
    for episode in ended:
        assert episode.steps[-1].contact is ContactSource.TOPIC
        assert episode.steps[-1].after.stamp == pytest.approx(2.2)
        assert episode.result.terminated[-1]
        assert episode.result.rewards[-1] < -14.0
    everything = episodes_of(events, TransitionConfig(contacts=("topic",)))
    stamps = {round(s.before.stamp, 3) for e in everything for s in e.steps}
    assert not any(2.25 < stamp < 2.95 for stamp in stamps)
    assert contact_ends(events, ("stall", "scan")) == []


def test_contact_by_stall() -> None:
    events: list[Event] = [
        Odometry(Pose2D(min(e.pose.x, 1.0), 0.0, 0.0), Twist2D(0.5 if e.pose.x < 1.0 else 0.0, 0, 0), e.stamp)
        if isinstance(e, Odometry)
        else e
        for e in straight(6.0)
    ]
    ended = contact_ends(events, ("stall",))
    # Commanded on, not moving at the ends of the periods at 2.0, 2.2, 2.4 and 2.6 s: 0.8 s of it.
    assert {round(e.steps[-1].after.stamp, 3) for e in ended} == {2.6}
    assert contact_ends(events, ("scan",)) == []


def test_contact_by_scan_but_not_by_the_robots_own_body() -> None:
    def seen(near: float, since: float) -> list[Event]:
        return [
            scan(e.stamp, near if e.stamp > since else 2.0) if isinstance(e, LaserScan) else e
            for e in straight(5.0)
        ]

    ended = contact_ends(seen(0.15, since=2.05), ("scan",))
    assert {round(e.steps[-1].after.stamp, 3) for e in ended} == {2.2}
    assert contact_ends(seen(0.15, since=-1.0), ("scan",)) == []


def test_distance_to_a_footprint() -> None:
    square = Footprint(polygon=((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)))
    x, y = np.array([0.0, 0.8, 0.8, 0.4]), np.array([0.0, 0.0, 0.9, 0.0])
    np.testing.assert_allclose(signed_distance(square, x, y), (-0.5, 0.3, 0.5, -0.1), atol=1e-12)
    np.testing.assert_allclose(signed_distance(Footprint(radius=0.2), x, y)[:2], (-0.2, 0.6))


def test_a_simulated_fleets_transitions_come_out_of_its_stream() -> None:
    """The same drive, judged by `SimulatedFleet` and, from what its sensors said, by this code."""
    robot = dataclasses.replace(ROBOT, lidar=Lidar(beams=90, range_max=9.0))
    spec = observation_for(robot, beams=30, frames=3)
    config = FleetConfig(worlds=1, robots_per_world=1, world_lifetime=0)
    fleet = SimulatedFleet(lambda n: generate.clutter(n, generate.TEST), robot, spec, TASK, config, seed=5)
    maker = TransitionMaker(robot, spec, TASK, robot.lidar.mount, config=TransitionConfig(goals="topic"))
    lidar, expected, found = robot.lidar, [], []

    def sense(now: float) -> None:
        simulator = fleet.simulator
        pose, speed = Pose2D(*simulator.poses[0]), Twist2D(*simulator.twists[0])
        found.extend(maker.add(Odometry(pose, speed, now)))
        header = (lidar.angle_min, lidar.angle_increment, lidar.range_min, lidar.range_max, now)
        found.extend(maker.add(LaserScan(simulator.scan()[0], *header)))

    found.extend(maker.add(GoalSet(0.0, Pose2D(*fleet.goals[0]))))
    sense(0.0)
    rng = np.random.default_rng(1)
    for i in range(40):
        action = np.array([[rng.uniform(0.0, 0.6), 0.0, rng.uniform(-0.3, 0.3)]], dtype=np.float32)
        before = fleet.observe()
        speed = Twist2D(*map(float, action[0] * (1.0, 0.0, 2.0)))
        found.extend(maker.add(Commanded(0.2 * i, speed)))
        result = fleet.advance(action)
        expected.append((before, result))
        sense(0.2 * (i + 1))
        if result.terminated[0]:
            break
    found += maker.finish()
    (episode,) = found
    count = len(expected)
    assert len(episode) == count > 10
    for name in ("scan", "goal", "speed"):
        before = np.concatenate([getattr(b, name) for b, _ in expected])
        after = np.concatenate([getattr(r.triplets, name) for _, r in expected])
        np.testing.assert_allclose(getattr(episode.states, name), before, atol=1e-6)
        np.testing.assert_allclose(getattr(episode.result.triplets, name), after, atol=1e-6)
    np.testing.assert_allclose(
        episode.result.actions, np.concatenate([r.actions for _, r in expected]), atol=1e-6
    )
    if not expected[-1][1].collided[0]:
        rewards = np.concatenate([r.rewards for _, r in expected])
        np.testing.assert_allclose(episode.result.rewards, rewards, atol=1e-4)
        np.testing.assert_array_equal(
            episode.result.terminated, np.concatenate([r.terminated for _, r in expected])
        )


# Replay files


@pytest.fixture
def episodes() -> list[Episode]:
    return episodes_of([*straight(20.0), *straight(4.0, begin=40.0)], TransitionConfig(goals="both"))


def write(path: Path, episodes: Iterable[Episode]) -> ReplayFile:
    with ReplayWriter(path, ROBOT, SPEC, TASK, {"note": 1}) as writer:
        for episode in episodes:
            writer.add(episode, 0)
        writer.note_bag({"path": "here"})
    return ReplayFile(path)


def test_replay_file_gives_back_what_was_lived(tmp_path: Path, episodes: list[Episode]) -> None:
    file = write(tmp_path / "a.replay", episodes)
    assert len(file) == sum(len(e) for e in episodes)
    assert file.header["bags"] == [{"path": "here"}]
    assert (file.robot, file.observation) == (ROBOT, SPEC)
    batches = list(file.batches())
    for name in ("scan", "goal", "speed"):
        for pick, ours in (
            (lambda b: b.before, lambda e: e.states),
            (lambda b: b.result.triplets, lambda e: e.result.triplets),
        ):
            read = np.concatenate([getattr(pick(b), name) for b in batches])
            lived = np.concatenate([getattr(ours(e), name) for e in episodes])
            # Scans are kept as float16, as the replay buffer keeps them.
            np.testing.assert_allclose(read, lived, rtol=1e-3 if name == "scan" else 0.0)
    for name in ("actions", "rewards", "terminated", "truncated"):
        read = np.concatenate([getattr(b.result, name) for b in batches])
        np.testing.assert_array_equal(read, np.concatenate([getattr(e.result, name) for e in episodes]))
    stamps = np.concatenate([[s.before.stamp for s in e.steps] for e in episodes])
    np.testing.assert_array_equal(file.array("stamp"), stamps)
    sources = np.concatenate([[e.goal_source] * len(e) for e in episodes])
    np.testing.assert_array_equal(file.array("goal_source"), sources)
    # Each scan is there once, although episodes share them.
    assert file.array("frames").shape[0] < len(file) + 20
    assert list(tmp_path.iterdir()) == [tmp_path / "a.replay"]


def test_replay_file_fills_a_buffer_with_its_chains(tmp_path: Path, episodes: list[Episode]) -> None:
    file = write(tmp_path / "a.replay", episodes)
    buffer = buffer_of([file], ROBOT, SPEC, seed=0, n_step=3)
    lived = ReplayBuffer(len(file), SPEC.scan_shape, 0, n_step=3)
    for i, episode in enumerate(episodes):
        lived.add(episode.states, episode.result, np.full(len(episode), i))
    for name in ("_scan", "_goal", "_speed", "_action", "_reward", "_terminated", "_next"):
        ours, theirs = getattr(buffer, name).numpy(), getattr(lived, name).numpy()
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_half_of_a_batch_from_each(tmp_path: Path, episodes: list[Episode]) -> None:
    recorded = buffer_of([write(tmp_path / "a.replay", episodes)], ROBOT, SPEC, seed=0)
    online = ReplayBuffer(4, SPEC.scan_shape, 0)
    first = episodes[0]
    online.add(first.states[:2], dataclasses.replace(_head(first), rewards=np.full(2, 99.0, np.float32)))
    batch = sample_both(online, recorded, 9)
    assert (batch.returns == 99.0).sum() == 5
    assert batch.states.scan.shape == (9, *SPEC.scan_shape)
    assert batch.successors.goal.shape == (9, 3)


def _head(episode: Episode):  # type: ignore[no-untyped-def]
    result = episode.result
    names = ("actions", "terminated", "truncated", "reached", "collided")
    return dataclasses.replace(
        result, triplets=result.triplets[:2], info={}, **{name: getattr(result, name)[:2] for name in names}
    )


def test_a_replay_file_for_another_robot_is_refused(tmp_path: Path, episodes: list[Episode]) -> None:
    file = write(tmp_path / "a.replay", episodes)
    slower = dataclasses.replace(ROBOT, limits=Limits(vx=0.5, wz=2.0))
    with pytest.raises(ReplayFileError, match=r"a\.replay: was converted for limits"):
        buffer_of([file], slower, SPEC, seed=0)
    with pytest.raises(ReplayFileError, match="observation"):
        buffer_of([file], ROBOT, dataclasses.replace(SPEC, range_max=20.0), seed=0)


def test_damaged_replay_files_are_refused(tmp_path: Path, episodes: list[Episode]) -> None:
    path = tmp_path / "a.replay"
    write(path, episodes)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(whole)
        at = int(rng.integers(len(whole)))
        damaged[at] ^= 1 << int(rng.integers(8))
        # A flipped bit among the blanks that pad the header changes nothing.
        path.write_bytes(damaged)
        with pytest.raises(ReplayFileError, match=r"a\.replay"):
            ReplayFile(path)
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ReplayFileError, match=r"a\.replay"):
            ReplayFile(path)


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, episodes: list[Episode]) -> None:
    path = tmp_path / "a.replay"
    path.write_text("before")

    def interrupted() -> None:
        with ReplayWriter(path, ROBOT, SPEC, TASK, {}) as writer:
            writer.add(episodes[0], 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
