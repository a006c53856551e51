"""Returns, chains and the ring, by hand and against a transcription that keeps plain lists."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot import checkpoint
from scanpilot.replay_buffer import Batch, ReplayBuffer
from scanpilot.types import StepResult, Triplet


def triplet(*states: float, frames: int = 2) -> Triplet:
    """One state per robot: ``s`` in its goal and speed, ``s - 1`` and ``s`` in its frames."""
    value = np.array(states, dtype=np.float32)
    older = [np.maximum(value - (frames - 1 - i), 0.0) for i in range(frames)]
    scan = np.stack(older, axis=1)[:, :, None].repeat(3, axis=2)
    return Triplet(scan, value[:, None].repeat(3, 1), -value[:, None].repeat(3, 1))


def result(
    after: list[float],
    rewards: list[float],
    terminated: list[bool] | None = None,
    truncated: list[bool] | None = None,
) -> StepResult:
    nobody = np.zeros(len(after), dtype=bool)
    return StepResult(
        triplets=triplet(*after),
        actions=np.array([[r, 0.0, -r] for r in rewards], dtype=np.float32),
        rewards=np.array(rewards, dtype=np.float32),
        terminated=nobody if terminated is None else np.array(terminated),
        truncated=nobody if truncated is None else np.array(truncated),
        reached=nobody,
        collided=nobody,
    )


def buffer(capacity: int = 16, n_step: int = 3, gamma: float = 0.5, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(capacity, (2, 3), seed, n_step, gamma)


def walk(
    replay: ReplayBuffer, rewards: list[float], terminated: int = -1, truncated: int = -1, first: float = 1.0
) -> None:
    """One robot through states first, first + 1, ...; the numbered step ends the episode."""
    for i, reward in enumerate(rewards):
        state = first + i
        replay.add(triplet(state), result([state + 1], [reward], [i == terminated], [i == truncated]))


def gather(replay: ReplayBuffer, *slots: int) -> Batch:
    return replay.gather(torch.tensor(slots))


def states_of(values: torch.Tensor) -> list[float]:
    return values[:, 0].tolist()


def test_one_step_returns_by_hand() -> None:
    replay = buffer(n_step=1)
    walk(replay, [1, 2, 4], terminated=2)
    batch = gather(replay, 0, 1, 2)
    assert batch.returns.tolist() == [1, 2, 4]
    assert batch.discounts.tolist() == [0.5, 0.5, 0]
    assert states_of(batch.states.goal) == [1, 2, 3]
    assert states_of(batch.bootstrap.goal) == [2, 3, 4]


def test_three_step_returns_by_hand() -> None:
    replay = buffer()
    walk(replay, [1, 2, 4, 8])
    batch = gather(replay, 0, 1, 2, 3)
    # 1 + 2/2 + 4/4; 2 + 4/2 + 8/4; then what there is so far: 4 + 8/2; 8.
    assert batch.returns.tolist() == [3, 6, 8, 8]
    assert batch.discounts.tolist() == [0.125, 0.125, 0.25, 0.5]
    assert states_of(batch.bootstrap.goal) == [4, 5, 5, 5]


def test_returns_stop_at_a_terminal_state_and_nothing_is_bootstrapped() -> None:
    replay = buffer()
    walk(replay, [1, 2, 4], terminated=2)
    walk(replay, [100, 100], first=11.0)
    batch = gather(replay, 0, 1, 2, 3)
    # 1 + 2/2 + 4/4; 2 + 4/2; 4; and 100 + 100/2 of the next episode.
    assert batch.returns.tolist() == [3, 4, 4, 150]
    assert batch.discounts.tolist() == [0, 0, 0, 0.25]


def test_returns_stop_at_a_time_limit_and_bootstrap_from_its_true_last_state() -> None:
    replay = buffer()
    walk(replay, [1, 2], truncated=1)
    # The reset's state is 11.
    walk(replay, [100, 100], first=11.0)
    batch = gather(replay, 0, 1)
    assert batch.returns.tolist() == [2, 2]
    assert batch.discounts.tolist() == [0.25, 0.5]
    assert states_of(batch.bootstrap.goal) == [3, 3]
    assert states_of(batch.bootstrap.speed) == [-3, -3]
    assert batch.bootstrap.scan[:, :, 0].tolist() == [[2, 3], [2, 3]]


def test_successors_are_one_step_away_with_three_step_returns_too() -> None:
    replay = buffer()
    walk(replay, [1, 2, 4, 8], truncated=1)
    walk(replay, [1], first=11.0)
    batch = gather(replay, 0, 1, 2)
    assert states_of(batch.successors.goal) == [2, 3, 4]
    assert states_of(batch.successors.speed) == [-2, -3, -4]
    assert batch.successors.scan[:, :, 0].tolist() == [[1, 2], [2, 3], [3, 4]]


def test_states_actions_and_scans_come_back_as_they_were_added() -> None:
    replay = buffer()
    walk(replay, [0.25, 0.75])
    batch = gather(replay, 1)
    assert batch.states.scan[0].tolist() == [[1, 1, 1], [2, 2, 2]]
    assert batch.actions.tolist() == [[0.75, 0, -0.75]]


def test_scans_keep_a_thousandth_of_their_range() -> None:
    replay = ReplayBuffer(4, (1, 5), 0)
    scan = np.array([[0.2, 1.2345, 7.777, 19.99, 20.0]], dtype=np.float32)
    state = Triplet(scan[None], np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
    step = result([1.0], [1.0])
    replay.add(state, StepResult(state, *(getattr(step, f) for f in ("actions", "rewards", "terminated")),
                                 step.truncated, step.reached, step.collided))  # fmt: skip
    np.testing.assert_allclose(gather(replay, 0).states.scan[0], scan, rtol=1e-3)


def test_chains_of_interleaved_robots_do_not_mix() -> None:
    replay = buffer()
    for t, (a, b) in enumerate([(1, 10), (2, 20), (4, 40)]):
        replay.add(triplet(1 + t, 101 + t), result([2 + t, 102 + t], [a, b], [False, t == 1]))
    batch = gather(replay, 0, 1)
    # 1 + 2/2 + 4/4; and 10 + 20/2, terminated.
    assert batch.returns.tolist() == [3, 20]
    assert batch.discounts.tolist() == [0.125, 0]


def test_chains_follow_the_id_not_the_row() -> None:
    replay = buffer()
    replay.add(triplet(1, 101), result([2, 102], [1, 10]), np.array([7, 9]))
    replay.add(triplet(102, 2), result([103, 3], [20, 2]), np.array([9, 7]))
    assert gather(replay, 0, 1).returns.tolist() == [2, 20]


def test_returns_never_cross_the_ring_pointer() -> None:
    replay = buffer(capacity=4)
    walk(replay, [1, 2, 4, 8, 16, 32])
    # The ring holds 16, 32, 4, 8: slot 1 is the newest and slot 2 the oldest.
    batch = gather(replay, 0, 1, 2, 3)
    # 16 + 32/2; 32; 4 + 8/2 + 16/4; 8 + 16/2 + 32/4
    assert batch.returns.tolist() == [32, 32, 12, 24]
    assert batch.discounts.tolist() == [0.25, 0.5, 0.125, 0.125]
    assert len(replay) == 4
    assert replay.added == 6


def test_a_robot_silent_while_the_ring_goes_round_does_not_join_anothers_chain() -> None:
    replay = buffer(capacity=4)
    replay.add(triplet(1), result([2], [1]), np.array([0]))
    for i in range(4):
        # The last of these stands in the slot that robot 0 had.
        replay.add(triplet(11 + i), result([12 + i], [10]), np.array([1]))
    replay.add(triplet(2), result([3], [100]), np.array([0]))
    batch = gather(replay, 0)
    assert batch.returns.tolist() == [10]
    assert states_of(batch.bootstrap.goal) == [15]


def test_more_robots_than_room_keep_the_newest_and_do_not_mix() -> None:
    replay = buffer(capacity=4)
    for t in range(3):
        rewards = [float(10 ** (i % 5)) for i in range(6)]
        added = replay.add(triplet(*(10 * i + t + 1 for i in range(6))),
                           result([10 * i + t + 2 for i in range(6)], rewards))  # fmt: skip
        assert added == 4
    batch = gather(replay, 0, 1, 2, 3)
    # A slot's state s = 10 robot + time; its rewards are its robot's alone: 1 or 1.5 or 1.75 times 10^i.
    for state, value, discount in zip(
        states_of(batch.states.goal), batch.returns.tolist(), batch.discounts.tolist(), strict=True
    ):
        reward = float(10 ** (int(state - 1) // 10 % 5))
        steps = round(math.log(discount, 0.5))
        assert value == reward * sum(0.5**i for i in range(steps))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "where", ["reward", "scan", "goal", "speed", "action", "next scan", "next goal", "next speed"]
)
def test_a_transition_that_is_not_finite_is_left_out_and_ends_its_chain(bad: float, where: str) -> None:
    replay = buffer()
    walk(replay, [1])
    before, step = triplet(2, 102), result([3, 103], [2, 20])
    arrays = {
        "reward": step.rewards,
        "action": step.actions,
        "scan": before.scan,
        "goal": before.goal,
        "speed": before.speed,
        "next scan": step.triplets.scan,
        "next goal": step.triplets.goal,
        "next speed": step.triplets.speed,
    }
    arrays[where][0].reshape(-1)[-1:].fill(bad) if where != "reward" else arrays[where].__setitem__(0, bad)
    assert replay.add(before, step) == 1
    replay.add(triplet(3, 103), result([4, 104], [4, 40]))
    assert (replay.rejected, len(replay)) == (1, 4)
    batch = gather(replay, 0, 1, 2, 3)
    # Robot 0: 1 alone, then 4 alone; robot 1, untouched: 20 + 40/2, then 40.
    assert sorted(batch.returns.tolist()) == [1, 4, 40, 40]
    assert torch.isfinite(batch.returns).all()


def test_forgotten_chains_are_not_continued() -> None:
    replay = buffer()
    walk(replay, [1])
    replay.forget_chains()
    walk(replay, [2], first=50.0)
    assert gather(replay, 0).returns.tolist() == [1]


def test_every_transition_is_drawn_about_equally_often() -> None:
    replay = buffer(capacity=8, n_step=1)
    walk(replay, [0, 1, 2, 3, 4])
    drawn = np.bincount(replay.sample(5000).returns.long().numpy(), minlength=8)
    # 1000 each; the deviation is 28.
    assert drawn[5:].sum() == 0
    assert (np.abs(drawn[:5] - 1000) < 170).all()


def test_an_empty_buffer_gives_no_sample() -> None:
    with pytest.raises(ValueError, match="empty"):
        buffer().sample(1)


@pytest.mark.parametrize(("capacity", "n_step"), [(0, 1), (4, 0)])
def test_impossible_sizes_are_refused(capacity: int, n_step: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ReplayBuffer(capacity, (1, 3), 0, n_step)


def same(a: Batch, b: Batch) -> bool:
    pairs = [(a.returns, b.returns), (a.discounts, b.discounts), (a.actions, b.actions)]
    for x, y in ((a.states, b.states), (a.bootstrap, b.bootstrap), (a.successors, b.successors)):
        pairs += [(x.scan, y.scan), (x.goal, y.goal), (x.speed, y.speed)]
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("steps", [3, 6, 11])
def test_a_restored_buffer_goes_on_as_the_one_that_was_saved(steps: int, tmp_path: Path) -> None:
    replay = buffer(capacity=6)
    walk(replay, [float(i) for i in range(steps)])
    replay.sample(7)
    checkpoint.write_state(tmp_path / "state", {"replay": replay.state_dict()})
    restored = buffer(capacity=6, seed=99)
    restored.load_state_dict(checkpoint.read_state(tmp_path / "state")["replay"])
    for one in (replay, restored):
        # The chain goes on where it was.
        one.add(triplet(steps + 1), result([steps + 2], [5]))
    assert same(replay.sample(50), restored.sample(50))
    assert same(replay.gather(torch.arange(len(replay))), restored.gather(torch.arange(len(replay))))
    assert (restored.added, len(restored)) == (replay.added, len(replay))


def test_a_state_of_another_shape_is_refused() -> None:
    replay = buffer(capacity=4)
    walk(replay, [1, 2, 4, 8, 16])
    for other in (buffer(capacity=8), ReplayBuffer(4, (2, 5), 0), ReplayBuffer(4, (3, 3), 0)):
        with pytest.raises(ValueError, match="shape"):
            other.load_state_dict(replay.state_dict())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    capacity=st.integers(1, 20),
    robots=st.integers(1, 5),
    n_step=st.integers(1, 4),
    lockstep=st.booleans(),
)
def test_against_plain_lists(seed: int, capacity: int, robots: int, n_step: int, lockstep: bool) -> None:
    """Some robots at a time, ends and rejects at random, against every transition in one list."""
    rng = np.random.default_rng(seed)
    replay = ReplayBuffer(capacity, (2, 3), 0, n_step, 0.5)
    # Of every transition: id, reward, next state, terminated, episode of its robot.
    log: list[tuple[int, float, float, bool, int]] = []
    episode = dict.fromkeys(range(robots), 0)
    state = 0.0
    for _ in range(rng.integers(1, 30)):
        ids = np.flatnonzero(rng.random(robots) < (1.0 if lockstep else 0.5))
        if not ids.size:
            continue
        rewards = rng.integers(0, 9, ids.size).astype(float)
        terminated, truncated = rng.random(ids.size) < 0.15, rng.random(ids.size) < 0.15
        state += 1.0
        rejected = rng.random(ids.size) < 0.1
        step = result([state] * ids.size, rewards.tolist(), terminated.tolist(), truncated.tolist())
        step.rewards[rejected] = math.nan
        accepted = []
        for robot, reward, end, cut, out in zip(ids, rewards, terminated, truncated, rejected, strict=True):
            if not out:
                accepted.append((int(robot), reward, state, bool(end), episode[int(robot)]))
            if end or cut or out:
                episode[int(robot)] += 1
        # A transition that finds no room is lost, and its robot's chain is broken there.
        for lost in accepted[: max(0, len(accepted) - capacity)]:
            if episode[lost[0]] == lost[4]:
                episode[lost[0]] += 1
        log.extend(accepted[max(0, len(accepted) - capacity) :])
        replay.add(triplet(*[state - 1.0] * ids.size), step, ids)
    for serial in range(max(0, len(log) - capacity), len(log)):
        robot, reward, last, end, number = log[serial]
        value, discount, steps = reward, 0.5, 1
        for other, later, state_after, ended, its in log[serial + 1 :]:
            if steps == n_step or (other == robot and its != number):
                break
            if other == robot:
                value, discount, steps = value + discount * later, discount * 0.5, steps + 1
                last, end = state_after, ended
        batch = gather(replay, serial % capacity)
        assert batch.returns.item() == value
        assert batch.discounts.item() == (0.0 if end else discount)
        assert batch.bootstrap.goal[0, 0].item() == last
