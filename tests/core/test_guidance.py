"""Which way round, against ways that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scanpilot.guidance import GuidanceSpec, Guide

BEAMS = 360
ANGLES = -math.pi + (np.arange(BEAMS) + 0.5) * 2.0 * math.pi / BEAMS
NOTHING = np.full(BEAMS, 20.0, dtype=np.float32)
SPEC = GuidanceSpec()


def wall_ahead(distance: float, right: float, left: float) -> np.ndarray:
    """A scan of a wall across the x axis, from y = ``right`` to y = ``left``, and nothing else."""
    with np.errstate(divide="ignore"):
        r = distance / np.cos(ANGLES)
    y = r * np.sin(ANGLES)
    seen = (np.cos(ANGLES) > 0.0) & (y >= right) & (y <= left) & (r < 20.0)
    return np.where(seen, r, 20.0).astype(np.float32)


def guide(robots: int = 1, spec: GuidanceSpec = SPEC) -> Guide:
    return Guide(spec, -math.pi, 2.0 * math.pi / BEAMS, BEAMS, 20.0, robots)


def ask(
    one: Guide,
    scan: np.ndarray,
    goal: tuple[float, float],
    pose: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> tuple[float, float]:
    """Direction, radians, and excess, metres."""
    out = one(scan[None], np.array([[*goal, 0.0]], dtype=np.float32), np.array([pose]))
    assert out.shape == (1, 3)
    assert out.dtype == np.float32
    assert math.hypot(out[0, 0], out[0, 1]) == pytest.approx(1.0, abs=1e-3)
    return math.atan2(out[0, 1], out[0, 0]), float(out[0, 2])


def guided(scan: np.ndarray, goal: tuple[float, float]) -> tuple[float, float]:
    return ask(guide(), scan, goal)


@pytest.mark.parametrize("goal", [(3.0, 0.0), (-2.0, 1.0), (0.0, -4.5), (9.0, 7.0), (-30.0, 2.0), (0.6, 0.3)])
def test_in_the_open_the_way_is_the_straight_line(goal: tuple[float, float]) -> None:
    direction, excess = guided(NOTHING, goal)
    straight = math.atan2(goal[1], goal[0])
    assert math.remainder(direction - straight, 2.0 * math.pi) == pytest.approx(0.0, abs=0.12)
    # A grid of cells overrates slanting ways a little.
    assert excess < 0.06 * math.hypot(*goal) + 0.1


def test_a_wall_is_passed_on_its_shorter_side() -> None:
    left, excess_left = guided(wall_ahead(1.0, right=-2.5, left=1.0), (3.0, 0.0))
    right, excess_right = guided(wall_ahead(1.0, right=-1.0, left=2.5), (3.0, 0.0))
    # Past the wall's end at (1, 1), 0.27 m clear of it: it begins towards (0.8, 1.2) or so.
    assert 0.7 < left < 1.3
    assert right == pytest.approx(-left, abs=0.05)
    # From (0, 0) by (1, 1.3) to (3, 0): 1.64 + 2.39 = 4.03 instead of 3, plus what closeness costs.
    assert 0.8 < excess_left < 2.0
    assert excess_right == pytest.approx(excess_left, abs=0.3)


def test_a_gap_is_passed_only_when_it_is_wide_enough() -> None:
    def with_gap(width: float) -> np.ndarray:
        return np.minimum(
            wall_ahead(1.5, right=-4.0, left=-0.5 * width), wall_ahead(1.5, right=0.5 * width, left=4.0)
        )

    direction, excess = guided(with_gap(1.2), (4.0, 0.0))
    assert abs(direction) < 0.15
    assert excess < 0.6
    assert guided(with_gap(0.54), (4.0, 0.0))[1] < 2.5
    _, excess = guided(with_gap(0.28), (4.0, 0.0))
    # By (1.5, 4.3): 4.55 + 4.97 = 9.5 instead of 4.
    assert excess > 4.5


def test_a_pocket_is_left_backwards() -> None:
    x, y = 1.5, 1.0
    with np.errstate(divide="ignore"):
        ahead = np.where(np.cos(ANGLES) > 0.0, x / np.cos(ANGLES), 20.0)
        side = np.where(np.abs(np.sin(ANGLES)) > 1e-9, y / np.abs(np.sin(ANGLES)), 20.0)
    # The side walls end 1.5 m behind the robot.
    side = np.where(side * np.cos(ANGLES) > -1.5, side, 20.0)
    direction, excess = guided(np.minimum(np.minimum(ahead, side), 20.0).astype(np.float32), (3.0, 0.0))
    assert abs(direction) > 2.0
    assert excess > 3.0


def test_shut_in_it_still_says_something_finite() -> None:
    direction, excess = guided(np.full(BEAMS, 0.6, dtype=np.float32), (3.0, 0.0))
    assert math.isfinite(direction)
    assert excess > 5.0


def test_scans_beyond_the_grid_and_no_returns_do_not_matter() -> None:
    far = np.where(np.abs(ANGLES) < 0.3, 12.0, 20.0).astype(np.float32)
    assert guided(far, (3.0, 1.0)) == guided(NOTHING, (3.0, 1.0))


def test_the_mirrored_scene_has_the_mirrored_way() -> None:
    rng, agree, apart = np.random.default_rng(3), 0, []
    for _ in range(20):
        scan = np.repeat(rng.uniform(0.5, 6.0, 36), 10).astype(np.float32)
        x, y = rng.uniform(-5.0, 5.0, 2)
        direction, excess = guided(scan, (x, y))
        mirrored, same = guided(scan[::-1], (x, -y))
        apart.append(abs(same - excess))
        # Where two ways are nearly as long as each other, either may win.
        turned = abs(math.remainder(mirrored + direction, 2.0 * math.pi))
        agree += turned < 0.2
    assert agree >= 16
    assert np.median(apart) < 0.1


def test_batched_equals_one_by_one() -> None:
    rng = np.random.default_rng(4)
    together, alone = guide(10), guide(10)
    for _ in range(3):
        scans = rng.uniform(0.5, 8.0, (10, BEAMS)).astype(np.float32)
        goals = rng.uniform(-6.0, 6.0, (10, 3)).astype(np.float32)
        poses = rng.uniform(-1.0, 1.0, (10, 3))
        at_once = together(scans, goals, poses)
        for k in reversed(range(10)):
            row = slice(k, k + 1)
            found = alone(scans[row], goals[row], poses[row], np.array([k]))
            np.testing.assert_array_equal(found[0], at_once[k])


def test_what_is_out_of_view_is_remembered_and_what_is_looked_through_is_forgotten() -> None:
    one = Guide(SPEC, -1.0, 2.0 / 114, 114, 20.0)
    angles = -1.0 + (np.arange(114) + 0.5) * 2.0 / 114
    wall = (1.2 / np.cos(angles)).astype(np.float32)
    nothing = np.full(114, 20.0, dtype=np.float32)
    _, excess = ask(one, wall, (3.0, 0.0))
    assert excess > 0.5
    # Turned round, the lidar sees the other half only: the wall is still there, behind.
    _, behind = ask(one, nothing, (-3.0, 0.0), (0.0, 0.0, math.pi))
    assert behind == pytest.approx(excess, abs=0.05)
    # Turned back, it looks through where the wall was.
    _, gone = ask(one, nothing, (3.0, 0.0))
    assert gone < 0.2
    ask(one, wall, (3.0, 0.0))
    one.forget()
    _, forgotten = ask(one, nothing, (-3.0, 0.0), (0.0, 0.0, math.pi))
    assert forgotten < 0.2


def test_the_map_moves_along_and_forgets_what_it_leaves() -> None:
    one = guide()
    _, excess = ask(one, wall_ahead(1.0, -2.0, 2.0), (3.0, 0.0))
    assert excess > 1.0
    assert np.isfinite(one.memory[0, ..., 0]).sum() > 10
    ask(one, NOTHING, (30.0, 0.0), (30.0, 0.0, 0.0))
    assert np.isnan(one.memory[0, ..., 0]).all()


@pytest.mark.parametrize("pose", [(100.0, -40.0, 0.0), (0.0, 0.0, math.pi / 2), (-7.0, 3.0, math.pi)])
def test_the_way_does_not_depend_on_where_odometry_began(pose: tuple[float, float, float]) -> None:
    scan = wall_ahead(1.0, right=-2.5, left=1.0)
    direction, excess = guided(scan, (3.0, 0.0))
    elsewhere, same = ask(guide(), scan, (3.0, 0.0), pose)
    assert elsewhere == pytest.approx(direction, abs=0.1)
    assert same == pytest.approx(excess, abs=0.25)


def test_a_memory_that_was_saved_goes_on_where_it_was() -> None:
    one, other = guide(), guide()
    ask(one, wall_ahead(1.0, -2.0, 2.0), (3.0, 0.0))
    other.restore(one.memory.copy())
    blind = np.full(BEAMS, 0.5, dtype=np.float32)
    assert ask(other, blind, (3.0, 0.0)) == ask(one, blind, (3.0, 0.0))


@pytest.mark.parametrize(
    "bad",
    [{"clearance": 0.0}, {"comfort": 0.2}, {"cell": 0.0}, {"look_ahead": 6.0}, {"half_width": math.inf}],
)
def test_impossible_grids_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="guidance has"):
        GuidanceSpec(**bad)


def test_threads_change_nothing() -> None:
    rng = np.random.default_rng(5)
    scans = rng.uniform(0.5, 8.0, (40, BEAMS)).astype(np.float32)
    goals = rng.uniform(-6.0, 6.0, (40, 3)).astype(np.float32)
    poses = rng.uniform(-1.0, 1.0, (40, 3))
    alone = guide(40)(scans, goals, poses)
    shared = Guide(SPEC, -math.pi, 2.0 * math.pi / BEAMS, BEAMS, 20.0, 40, threads=2)(scans, goals, poses)
    np.testing.assert_array_equal(shared, alone)
