"""From scans and goals to what the network sees: hand-drawn scans, and geometry done another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot.guidance import GuidanceSpec
from scanpilot.observation import (
    FrameStack,
    ObservationSpec,
    ScanConverter,
    ScanResampler,
    check_scan,
    decode_scan,
    encode_scan,
    encode_state,
    interpret_ranges,
    observation_for,
    obstacle_points,
    triplet_of,
    triplets_of,
    with_guidance,
)
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import InvalidInput, LaserScan, Pose2D, Triplet, Twist2D

PI = math.pi
FOUR = ObservationSpec(beams=4, frames=1)
# Middles of FOUR's sectors: right behind, right ahead, left ahead, left behind.
MIDDLES = (-0.75 * PI, -0.25 * PI, 0.25 * PI, 0.75 * PI)
NONE = 20.0


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def resample(
    ranges: np.ndarray,
    angle_min: float,
    increment: float,
    spec: ObservationSpec = FOUR,
    mount: Pose2D = Pose2D(0.0, 0.0, 0.0),  # noqa: B008
    flipped: bool = False,
    range_min: float = 0.1,
    range_max: float = 30.0,
) -> np.ndarray:
    resampler = ScanResampler(
        spec, angle_min, increment, ranges.shape[-1], range_min, range_max, mount, flipped
    )
    return resampler(ranges)


def room_ranges(directions: np.ndarray, mount: Pose2D, radius: float) -> np.ndarray:
    """Ranges to a circular wall about base_link, from the quadratic |p + r u| = radius."""
    ux, uy = np.cos(directions), np.sin(directions)
    along = mount.x * ux + mount.y * uy
    return (-along + np.sqrt(along**2 + radius**2 - mount.x**2 - mount.y**2)).astype(np.float32)


# The rule of what a reading means.


@pytest.mark.parametrize(
    ("reading", "meaning"),
    [
        (5.0, 5.0),
        (0.05, 0.05),  # below range_min but no code: something is there
        (9.99, 9.99),
        (10.0, math.inf),  # at range_max
        (65.535, math.inf),  # vendor's cap
        (math.inf, math.inf),
        (math.nan, math.inf),
        (0.0, math.inf),
        (0.001, math.inf),  # error codes of some millimetres
        (0.02, math.inf),
        (-1.0, math.inf),
        (-math.inf, 0.1),  # REP-117: too close to measure
    ],
)
def test_range_rule(reading: float, meaning: float) -> None:
    assert interpret_ranges(floats(reading), 0.1, 10.0)[0] == pytest.approx(meaning, rel=1e-6)


@pytest.mark.parametrize("range_max", [3.5, 8.2, 8.3, 11.9, 12.1, 29.9])
def test_range_max_as_float32_is_no_return_whatever_its_rounding(range_max: float) -> None:
    # float32(8.2) is 8.1999998: below the 8.2 of a robot file, equal to the 8.2 of a ROS header.
    reading = floats(range_max)
    assert interpret_ranges(reading, 0.1, range_max)[0] == math.inf
    assert interpret_ranges(reading, 0.1, float(reading[0]))[0] == math.inf


def test_no_return_looks_the_same_however_it_is_encoded() -> None:
    scans = [resample(floats(1.0, code, 2.0, 3.0), MIDDLES[0], PI / 2, range_max=10.0)
             for code in (math.inf, math.nan, 0.0, 10.0, 65.535, -1.0, 0.005)]  # fmt: skip
    for scan in scans:
        assert scan.tolist() == [1.0, NONE, 2.0, 3.0]


def test_too_close_to_measure_is_an_obstacle_at_range_min() -> None:
    assert resample(floats(1.0, -math.inf, 2.0, 3.0), MIDDLES[0], PI / 2, range_min=0.5).tolist() == [
        1.0,
        0.5,
        2.0,
        3.0,
    ]


def test_scan_that_says_nothing_is_refused() -> None:
    def scan(*values: float) -> LaserScan:
        return LaserScan(floats(*values), 0.0, 0.1, 0.1, 10.0)

    with pytest.raises(InvalidInput, match="none of the scan's 3 ranges"):
        check_scan(scan(math.inf, math.nan, -math.inf))
    check_scan(scan(math.inf, math.nan, 0.0))


# Sectors by hand: 1 m right behind, 2 m right ahead, 3 m left ahead, 4 m left behind.


def test_four_beams_into_four_sectors() -> None:
    assert resample(floats(1, 2, 3, 4), MIDDLES[0], PI / 2).tolist() == [1, 2, 3, 4]


def test_a_scan_from_0_to_2_pi_starts_at_the_left_ahead() -> None:
    assert resample(floats(3, 4, 1, 2), PI / 4, PI / 2).tolist() == [1, 2, 3, 4]


def test_a_clockwise_scan() -> None:
    assert resample(floats(4, 3, 2, 1), MIDDLES[3], -PI / 2).tolist() == [1, 2, 3, 4]


def test_a_lidar_upside_down() -> None:
    # Its beam at -135 degrees looks at +135.
    assert resample(floats(4, 3, 2, 1), MIDDLES[0], PI / 2, flipped=True).tolist() == [1, 2, 3, 4]


def test_a_lidar_turned_by_a_quarter() -> None:
    # Beams at -135, -45, 45, 135 look at -45, 45, 135, -135 in base_link.
    assert resample(floats(2, 3, 4, 1), MIDDLES[0], PI / 2, mount=Pose2D(0, 0, PI / 2)).tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_a_lidar_turned_by_half_a_turn() -> None:
    # They look at 45, 135, -135, -45.
    assert resample(floats(3, 4, 1, 2), MIDDLES[0], PI / 2, mount=Pose2D(0, 0, PI)).tolist() == [1, 2, 3, 4]


def test_a_lidar_upside_down_and_turned() -> None:
    # 90 degrees minus the beam's angle: they look at -135, 135, 45, -45.
    scan = resample(floats(1, 4, 3, 2), MIDDLES[0], PI / 2, mount=Pose2D(0, 0, PI / 2), flipped=True)
    assert scan.tolist() == [1, 2, 3, 4]


def test_the_nearest_of_a_sector_is_kept() -> None:
    # 8 beams, two to a sector, 22.5 degrees off its middle to either side.
    scan = resample(floats(9, 1, 2, 9, math.inf, 3, 4, math.nan), -PI + PI / 8, PI / 4)
    assert scan.tolist() == [1, 2, 3, 4]


def test_sectors_that_no_beam_looks_into_hold_range_max() -> None:
    # Two beams, ahead to the right and to the left.
    assert resample(floats(2, 3), -PI / 4, PI / 2).tolist() == [NONE, 2, 3, NONE]


def test_beams_outside_a_narrow_field_of_view_are_left_out() -> None:
    ahead = ObservationSpec(beams=2, angle_min=-PI / 2, angle_max=PI / 2, frames=1)
    assert resample(floats(1, 2, 3, 4), MIDDLES[0], PI / 2, spec=ahead).tolist() == [2, 3]


def test_a_field_of_view_across_the_back() -> None:
    back = ObservationSpec(beams=2, angle_min=PI / 2, angle_max=1.5 * PI, frames=1)
    assert resample(floats(1, 2, 3, 4), MIDDLES[0], PI / 2, spec=back).tolist() == [4, 1]


def test_a_sparse_beam_speaks_for_its_neighbours_too() -> None:
    # 8 sectors of 45 degrees, beams in the middles of every other one. The ones between lie as
    # near to the beam before as to the beam after: the nearer obstacle of the two.
    spec = ObservationSpec(beams=8, frames=1)
    assert resample(floats(1, 2, 3, 4), -PI + PI / 8, PI / 2, spec=spec).tolist() == [1, 1, 2, 2, 3, 3, 4, 1]


def test_ranges_are_clipped_to_the_policys_range() -> None:
    spec = ObservationSpec(beams=4, frames=1, range_min=0.5, range_max=3.0)
    scan = resample(floats(0.1, 2, 5, math.inf), MIDDLES[0], PI / 2, spec=spec)
    assert scan.tolist() == [0.5, 2, 3, 3]
    assert scan.dtype == np.float32


def test_one_beam() -> None:
    assert resample(floats(2), 0.3, 0.0).tolist() == [NONE, NONE, 2, NONE]


def test_wrong_number_of_ranges_is_refused() -> None:
    resampler = ScanResampler(FOUR, 0.0, 0.1, 8, 0.1, 10.0)
    with pytest.raises(InvalidInput, match="7 ranges, expected 8"):
        resampler(np.ones(7, np.float32))


# Boundaries.


def beams_per_sector(
    spec: ObservationSpec, angle_min: float, increment: float, beams: int, yaw: float
) -> np.ndarray:
    """How many beams each sector hears, from scans in which one beam alone sees something."""
    ranges = np.where(np.eye(beams, dtype=bool), 1.0, math.inf).astype(np.float32)
    heard = resample(ranges, angle_min, increment, spec=spec, mount=Pose2D(0, 0, yaw)) < NONE
    assert (heard.sum(1) == 1).all(), "a beam is heard in one sector"
    return heard.sum(0)


@pytest.mark.parametrize("beams", [180, 360, 720])
@pytest.mark.parametrize("single_precision", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_full_turn_shares_its_beams_out_evenly_from_any_start(
    beams: int, single_precision: bool, sign: int
) -> None:
    # Every beam, or every other one, stands on the border of two sectors: rounding must not
    # push some to one side and some to the other. ROS headers are float32.
    increment = sign * 2 * PI / beams
    cast = np.float32 if single_precision else np.float64
    for start in range(-beams, beams, 37):
        counts = beams_per_sector(
            ObservationSpec(frames=1), float(cast(start * increment)), float(cast(increment)), beams, 0.0
        )
        assert counts.tolist() == [beams // 180] * 180


@pytest.mark.parametrize("yaw", [PI / 2, 1.5708, -1.5708, 3.14159, -PI, 0.785398])
def test_a_full_turn_shares_its_beams_out_evenly_under_a_mount_of_few_digits(yaw: float) -> None:
    # 1.5708, as people write it into a URDF, is 4e-6 beyond a quarter turn.
    counts = beams_per_sector(ObservationSpec(frames=1), -PI, 2 * PI / 360, 360, yaw)
    assert counts.tolist() == [2] * 180


@settings(max_examples=60, deadline=None)
@given(
    beams=st.integers(20, 400),
    sectors=st.integers(4, 200),
    start=st.floats(-7.0, 7.0),
    single_precision=st.booleans(),
)
def test_a_full_turn_leaves_no_sector_empty(
    beams: int, sectors: int, start: float, single_precision: bool
) -> None:
    cast = np.float32 if single_precision else np.float64
    scan = resample(
        np.full(beams, 3.0, np.float32),
        float(cast(start)),
        float(cast(2 * PI / beams)),
        spec=ObservationSpec(beams=sectors, frames=1),
    )
    assert (scan == 3.0).all()


# Against a transcription in plain loops.


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_sector_holds_its_nearest_beam(data: st.DataObject) -> None:
    sectors = data.draw(st.integers(1, 60))
    low = data.draw(st.floats(-PI, 0.0))
    width = data.draw(st.floats(0.5, 2 * PI))
    spec = ObservationSpec(beams=sectors, angle_min=low, angle_max=low + width, frames=1)
    beams = data.draw(st.integers(1, 300))
    # As dense as the sectors at least, so that a beam speaks for its own sector alone.
    increment = data.draw(st.floats(0.05, 0.99)) * min(spec.sector, 2 * PI / beams)
    start, yaw = data.draw(st.floats(-4.0, 4.0)), data.draw(st.floats(-4.0, 4.0))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    ranges = rng.uniform(0.3, 19.0, beams).astype(np.float32)
    out = resample(ranges, start, increment, spec=spec, mount=Pose2D(0.0, 0.0, yaw))
    slack = 0.01 * spec.sector
    for j in range(sectors):
        surely, possibly = [NONE], [NONE]
        for i in range(beams):
            offset = start + i * increment + yaw - (low + (j + 0.5) * spec.sector)
            distance = abs(math.remainder(offset, 2 * PI))
            if distance < 0.5 * spec.sector - slack:
                surely.append(float(ranges[i]))
            if distance < 0.5 * spec.sector + slack:
                possibly.append(float(ranges[i]))
        assert min(possibly) <= out[j] <= min(surely)


@settings(max_examples=60, deadline=None)
@given(turn=st.floats(-7.0, 7.0), beams=st.integers(2, 300), seed=st.integers(0, 1000))
def test_turning_the_mount_and_the_header_oppositely_changes_nothing(
    turn: float, beams: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    ranges = rng.uniform(0.0, 35.0, beams).astype(np.float32)
    start, increment = rng.uniform(-PI, PI), 2 * PI / beams
    spec = ObservationSpec(frames=1)
    np.testing.assert_array_equal(
        resample(ranges, start - turn, increment, spec=spec, mount=Pose2D(0, 0, turn)),
        resample(ranges, start, increment, spec=spec),
    )


@settings(max_examples=60, deadline=None)
@given(beams=st.integers(2, 300), seed=st.integers(0, 1000), offset=st.booleans())
def test_the_order_of_the_beams_does_not_matter(beams: int, seed: int, offset: bool) -> None:
    rng = np.random.default_rng(seed)
    ranges = rng.uniform(0.0, 35.0, beams).astype(np.float32)
    start, increment = rng.uniform(-PI, PI), 2 * PI / beams
    mount = Pose2D(0.2, -0.1, 0.3) if offset else Pose2D(0, 0, 0.3)
    spec = ObservationSpec(frames=1)
    np.testing.assert_array_equal(
        resample(ranges[::-1], start + (beams - 1) * increment, -increment, spec=spec, mount=mount),
        resample(ranges, start, increment, spec=spec, mount=mount),
    )


@pytest.mark.parametrize("mount", [Pose2D(0.0, 0.0, 0.4), Pose2D(0.2, -0.1, 0.4)])
def test_a_batch_equals_its_rows_bit_for_bit(mount: Pose2D) -> None:
    ranges = np.random.default_rng(0).uniform(0.0, 35.0, (5, 247)).astype(np.float32)
    ranges[0, :9] = [math.nan, math.inf, -math.inf, 0.0, -1.0, 0.001, 30.0, 65.535, 0.05]
    resampler = ScanResampler(ObservationSpec(frames=1), -2.0, 0.02, 247, 0.1, 30.0, mount)
    np.testing.assert_array_equal(resampler(ranges), np.stack([resampler(row) for row in ranges]))


# A lidar away from base_link.


def test_an_offset_lidar_by_hand() -> None:
    # A lidar 1 m ahead of base_link sees 2 m ahead, 2 m to the left and 3 m back; in base_link
    # these are (3, 0), (1, 2) and (-2, 0).
    ranges = np.full(72, math.inf, np.float32)
    ranges[[0, 18, 36]] = [2.0, 2.0, 3.0]
    # Sectors about ahead, left, back and right.
    spec = ObservationSpec(beams=4, angle_min=-PI / 4, angle_max=1.75 * PI, frames=1)
    scan = resample(ranges, 0.0, 2 * PI / 72, spec=spec, mount=Pose2D(1.0, 0.0, 0.0))
    np.testing.assert_allclose(scan, [3.0, math.sqrt(5), 2.0, NONE], rtol=1e-6)


def test_an_offset_lidars_error_codes_are_no_obstacles() -> None:
    scan = resample(floats(0.0, math.nan, math.inf, 30.0), MIDDLES[0], PI / 2, mount=Pose2D(1.0, 0.0, 0.0))
    assert scan.tolist() == [NONE] * 4


@pytest.mark.parametrize("beams", [180, 247, 360, 720])
@pytest.mark.parametrize(
    "mount", [Pose2D(0.25, 0.0, 0.0), Pose2D(-0.04, 0.0, PI / 2), Pose2D(-0.2, 0.3, 2.0)]
)
def test_an_offset_lidar_sees_a_round_room_from_its_middle(beams: int, mount: Pose2D) -> None:
    increment = 2 * PI / beams
    ranges = room_ranges(-PI + increment * np.arange(beams) + mount.yaw, mount, 1.0)
    scan = resample(ranges, -PI, increment, spec=ObservationSpec(frames=1), mount=mount)
    np.testing.assert_allclose(scan, 1.0, rtol=1e-5)


# A stream of scans.


def test_beam_counts_that_change_from_scan_to_scan() -> None:
    # A round room of 3 m with a post at 1 m, straight to the left.
    convert = ScanConverter(ObservationSpec(frames=1), Pose2D(0, 0, 0))
    for beams in (246, 247, 248, 247, 246):
        increment = 2 * PI / beams
        angles = -PI + increment * np.arange(beams)
        ranges = np.where(np.abs(angles - PI / 2) < 0.1, 1.0, 3.0).astype(np.float32)
        scan = convert(LaserScan(ranges, -PI, increment, 0.1, 12.0))
        post = scan == 1.0
        assert ((scan == 3.0) | post).all()
        # Sectors of 2 degrees; 0.2 rad is 11.5 degrees.
        assert 5 <= post.sum() <= 8
        assert abs(np.flatnonzero(post).mean() - 134.5) <= 1.0


def test_more_headers_than_are_remembered() -> None:
    convert = ScanConverter(FOUR, Pose2D(0, 0, 0))
    for _ in range(2):
        for extra in range(40):
            ranges = np.full(100 + extra, 5.0, np.float32)
            scan = convert(LaserScan(ranges, -PI, 2 * PI / ranges.size, 0.1, 10.0 if extra % 2 else 4.0))
            assert scan.tolist() == [5.0 if extra % 2 else NONE] * 4


def test_a_scan_that_repeats_its_first_direction() -> None:
    ranges = np.full(361, 5.0, np.float32)
    ranges[-1] = 1.0
    scan = ScanConverter(ObservationSpec(frames=1), Pose2D(0, 0, 0))(
        LaserScan(ranges, -PI, PI / 180, 0.1, 12.0)
    )
    assert (scan == 1.0).nonzero()[0].tolist() == [0]


# Frames.


def test_the_first_frame_fills_the_stack_and_the_newest_is_last() -> None:
    stack = FrameStack(ObservationSpec(beams=1, frames=3))
    values = [stack.push(floats(v)[None])[0, :, 0].tolist() for v in (1, 2, 3, 4)]
    assert values == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_a_restarted_robot_forgets_and_the_others_do_not() -> None:
    stack = FrameStack(ObservationSpec(beams=1, frames=2), 2)
    stack.push(floats(1, 10)[:, None])
    stack.push(floats(2, 20)[:, None])
    stack.restart(np.array([1]))
    assert stack.push(floats(3, 30)[:, None])[..., 0].tolist() == [[2, 3], [30, 30]]
    assert stack.push(floats(4, 40)[:, None])[..., 0].tolist() == [[3, 4], [30, 40]]


def test_robots_restarted_with_a_scan_stand_at_its_beginning() -> None:
    stack = FrameStack(ObservationSpec(beams=1, frames=2), 3)
    stack.push(floats(1, 10, 100)[:, None])
    stack.push(floats(2, 20, 200)[:, None])
    assert stack.restarted(np.array([2, 0]), floats(7, 5)[:, None])[..., 0].tolist() == [[7, 7], [5, 5]]
    assert stack.push(floats(6, 30, 8)[:, None])[..., 0].tolist() == [[5, 6], [20, 30], [7, 8]]


def test_pushed_stacks_are_copies() -> None:
    stack = FrameStack(ObservationSpec(beams=1, frames=2))
    first = stack.push(floats(1)[None])
    stack.push(floats(2)[None])
    assert first[0, :, 0].tolist() == [1, 1]


# What the network sees.


def test_triplets_hold_the_goal_in_base_link() -> None:
    # At (1, 1) looking along +y: (1, 4) is 3 m ahead, turned by -90 degrees.
    triplet = triplet_of(
        np.ones((2, 4), np.float32), Pose2D(1, 4, 0), Pose2D(1, 1, PI / 2), Twist2D(0.1, 0.2, 0.3)
    )
    np.testing.assert_allclose(triplet.goal, [3.0, 0.0, -PI / 2], atol=1e-6)
    np.testing.assert_allclose(triplet.speed, [0.1, 0.2, 0.3], atol=1e-7)
    assert {triplet.scan.dtype, triplet.goal.dtype, triplet.speed.dtype} == {np.dtype(np.float32)}
    assert (triplet.scan.shape, triplet.goal.shape, triplet.speed.shape) == ((2, 4), (3,), (3,))


def test_one_triplet_equals_a_row_of_many_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    stacks = rng.uniform(0.2, 20.0, (7, 2, 4)).astype(np.float32)
    goals, poses, speeds = (rng.normal(0.0, 5.0, (7, 3)) for _ in range(3))
    many = triplets_of(stacks, goals, poses, speeds)
    for i in range(7):
        one = triplet_of(stacks[i], Pose2D(*goals[i]), Pose2D(*poses[i]), Twist2D(*speeds[i]))
        for a, b in ((one.scan, many.scan[i]), (one.goal, many.goal[i]), (one.speed, many.speed[i])):
            np.testing.assert_array_equal(a, b)


def test_encode_scan_by_hand() -> None:
    # (ln r - 1) / 2: e gives 0, e^3 gives 1, 1/e gives -1.
    np.testing.assert_allclose(encode_scan(np.exp([1.0, 3.0, -1.0]), np), [0.0, 1.0, -1.0], atol=1e-12)


@pytest.mark.parametrize("xp", [np, torch])
def test_decode_undoes_encode(xp: Any) -> None:
    scan = np.linspace(0.2, 20.0, 50, dtype=np.float32)
    values = torch.from_numpy(scan) if xp is torch else scan
    np.testing.assert_allclose(decode_scan(encode_scan(values, xp), ObservationSpec(), xp), scan, rtol=1e-5)


@pytest.mark.parametrize("xp", [np, torch])
def test_reconstructions_are_clipped_in_metres(xp: Any) -> None:
    # 0 decodes to e m. Clipping to [0.2, 20] before undoing the scaling would give e^1.4 to e^41.
    encoded = [-1e30, -5.0, 0.0, 5.0, 1e30]
    values = torch.tensor(encoded) if xp is torch else np.array(encoded)
    np.testing.assert_allclose(
        decode_scan(values, ObservationSpec(), xp), [0.2, 0.2, math.e, 20.0, 20.0], rtol=1e-5
    )


def test_encode_state_by_hand() -> None:
    # Goal 3 m ahead and 4 m left, turned by 90 degrees: bearing (0.6, 0.8), 5 of 10 m is 0 in -1..1.
    spec = ObservationSpec(speed_scale=(0.5, 1.0, 2.0))
    state = encode_state(np.array([3.0, 4.0, PI / 2]), np.array([0.25, -0.1, 1.0]), spec, np)
    np.testing.assert_allclose(state, [0.6, 0.8, 0.0, math.exp(-5), 0.0, 1.0, 0.5, -0.1, 0.5], atol=1e-9)


def test_far_goals_are_a_direction_only() -> None:
    near = encode_state(np.array([0.0, -30.0, 0.0]), np.zeros(3), ObservationSpec(), np)
    np.testing.assert_allclose(near, [0, -1, 1, 0, 1, 0, 0, 0, 0], atol=1e-12)
    far = encode_state(np.array([0.0, -300.0, 0.0]), np.zeros(3), ObservationSpec(), np)
    np.testing.assert_allclose(far, near, atol=1e-12)


def test_state_at_the_goal_is_finite() -> None:
    state = encode_state(torch.zeros(2, 3), torch.zeros(2, 3), ObservationSpec(), torch)
    np.testing.assert_allclose(state, [[0, 0, -1, 1, 1, 0, 0, 0, 0]] * 2, atol=1e-5)


def test_encode_state_is_the_same_in_numpy_and_torch() -> None:
    rng = np.random.default_rng(2)
    goal, speed = rng.normal(0, 5, (2, 6, 3)).astype(np.float32)
    spec = ObservationSpec(speed_scale=(0.5, 1.0, 2.0))
    np.testing.assert_allclose(
        encode_state(torch.from_numpy(goal), torch.from_numpy(speed), spec, torch),
        encode_state(goal, speed, spec, np),
        rtol=1e-5,
        atol=1e-6,
    )


# The observation that suits a robot.


def robot(**lidar: float) -> RobotSpec:
    return RobotSpec(
        "test",
        "differential",
        Footprint(radius=0.2),
        Limits(vx=0.7, wz=1.5),
        Lidar(**{"beams": 9, **lidar}),  # type: ignore[arg-type]
    )


def test_a_full_turn_lidar_gets_the_whole_turn() -> None:
    spec = observation_for(robot(angle_min=0.0, angle_max=2 * PI), beams=60, frames=2)
    assert (spec.angle_min, spec.angle_max, spec.beams, spec.frames) == (-PI, PI, 60, 2)
    assert spec.speed_scale == (0.7, 1.0, 1.5)


def test_a_narrow_lidars_edge_beams_stand_inside_their_sectors() -> None:
    # 9 beams over 240 degrees, 30 degrees apart, turned left by 10 degrees: half a beam to spare.
    spec = observation_for(robot(angle_min=-2 * PI / 3, angle_max=2 * PI / 3, yaw=math.radians(10)), beams=9)
    assert math.degrees(spec.angle_min) == pytest.approx(-120 - 15 + 10)
    assert math.degrees(spec.angle_max) == pytest.approx(120 + 15 + 10)
    np.testing.assert_allclose(np.degrees(spec.angles), np.arange(-110, 131, 30), atol=1e-9)


@pytest.mark.parametrize("beams", [8, 9, 360, 720, 1440])
@pytest.mark.parametrize("start", [-PI, 0.0, -3.0])
def test_a_turn_less_one_increment_is_a_whole_turn(beams: int, start: float) -> None:
    # How drivers describe a rotating lidar: the last beam stands one increment before the first.
    spec = observation_for(robot(beams=beams, angle_min=start, angle_max=start + 2 * PI * (1 - 1 / beams)))
    assert (spec.angle_min, spec.angle_max) == (-PI, PI)


@pytest.mark.parametrize(
    "bad",
    [
        {"beams": 0},
        {"frames": 0},
        {"angle_min": 1.0, "angle_max": 1.0},
        {"angle_min": -4.0, "angle_max": 4.0},
        {"range_min": 0.0},
        {"range_min": 5.0, "range_max": 4.0},
        {"range_max": math.inf},
        {"speed_scale": (1.0, 0.0, 1.0)},
        {"encoding_version": 2},
    ],
)
def test_impossible_observations_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0].replace("angle", "field of view")):
        ObservationSpec(**bad)


# A robot that moves while its lidar turns.


def moving_scan(
    mount: Pose2D, twist: Twist2D, beams: int, duration: float, flipped: bool = False
) -> tuple[np.ndarray, float]:
    """Ranges to a wall of 4 m radius about where base_link is at the last beam, taken one after another.

    The robot's path by fine Euler steps, the ranges as in `room_ranges`, but from where each was taken.
    """
    step = duration / (beams - 1)
    ranges = np.empty(beams, np.float32)
    sign = -1.0 if flipped else 1.0
    x = y = yaw = 0.0
    for i in reversed(range(beams)):
        px = x + math.cos(yaw) * mount.x - math.sin(yaw) * mount.y
        py = y + math.sin(yaw) * mount.x + math.cos(yaw) * mount.y
        direction = yaw + mount.yaw + sign * (-PI + i * 2 * PI / beams)
        ranges[i] = room_ranges(np.array([direction]), Pose2D(px, py, 0.0), 4.0)[0]
        for _ in range(20):
            dt = -step / 20
            x += dt * (twist.vx * math.cos(yaw) - twist.vy * math.sin(yaw))
            y += dt * (twist.vx * math.sin(yaw) + twist.vy * math.cos(yaw))
            yaw += dt * twist.wz
    return ranges, step


@pytest.mark.parametrize("mount", [Pose2D(0.0, 0.0, 0.4), Pose2D(0.3, -0.1, 2.0)])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("twist", [Twist2D(1.0, 0.0, 0.0), Twist2D(0.8, 0.3, 1.5), Twist2D(0.5, 0.0, -1.5)])
def test_motion_during_a_slow_rotation_is_undone(mount: Pose2D, flipped: bool, twist: Twist2D) -> None:
    beams, spec = 720, ObservationSpec(frames=1)
    ranges, step = moving_scan(mount, twist, beams, 0.25, flipped)
    resampler = ScanResampler(spec, -PI, 2 * PI / beams, beams, 0.1, 10.0, mount, flipped)
    compensated = resampler(ranges, np.array(twist), step)
    # The wall is round: wherever the robot looks, it is 4 m away.
    np.testing.assert_allclose(compensated, 4.0, atol=0.22)
    assert np.sort(np.abs(compensated - 4.0))[:-12].max() < 0.005, "but for the gap that the motion leaves"
    assert np.count_nonzero(np.abs(resampler(ranges) - 4.0) > 0.02) > 60
    points = obstacle_points(
        LaserScan(ranges, -PI, 2 * PI / beams, 0.1, 10.0, time_increment=step), mount, flipped, twist
    )
    np.testing.assert_allclose(np.hypot(*points.T), 4.0, atol=0.005)


def test_points_of_a_scan_lie_where_they_were_hit() -> None:
    scan = LaserScan(floats(1, math.inf, 2, 0, -math.inf), 0.0, PI / 2, 0.5, 10.0)
    expected = [(1.2, 0.1), (-1.8, 0.1), (0.7, 0.1)]
    np.testing.assert_allclose(obstacle_points(scan, Pose2D(0.2, 0.1, 0.0)), expected, atol=1e-12)
    # Upside down and turned by a quarter: its first beam looks left, its third right.
    hanging = obstacle_points(scan, Pose2D(0.2, 0.1, PI / 2), flipped=True)
    np.testing.assert_allclose(hanging, [(0.2, 1.1), (0.2, -1.9), (0.2, 0.6)], atol=1e-12)


def test_rows_that_stand_are_not_changed_by_rows_that_move() -> None:
    rng = np.random.default_rng(0)
    ranges = rng.uniform(0.0, 12.0, (3, 200)).astype(np.float32)
    resampler = ScanResampler(ObservationSpec(frames=1), -2.0, 0.02, 200, 0.1, 10.0, Pose2D(0, 0, 0.1))
    twists = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.001, 0.0, 0.001]])
    together = resampler(ranges, twists, 0.001)
    alone = np.stack([resampler(r, t, 0.001) for r, t in zip(ranges, twists, strict=True)])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together[[0, 2]], resampler(ranges[[0, 2]]))
    assert (together[1] != resampler(ranges[1])).any()


def test_where_a_turning_robot_leaves_a_gap_the_scan_shows_what_it_saw_there() -> None:
    # The lidar turns counter-clockwise from behind to behind, the robot clockwise at 2 rad/s: 0.4 rad are
    # not looked at. An obstacle 1 m behind, hit by the first beams alone, must not vanish.
    beams = 360
    ranges = np.full(beams, math.inf, np.float32)
    ranges[:3] = 1.0
    resampler = ScanResampler(ObservationSpec(frames=1), -PI, 2 * PI / beams, beams, 0.1, 10.0)
    scan = resampler(ranges, np.array([0.0, 0.0, -2.0]), 0.2 / (beams - 1))
    assert scan[:2].tolist() == [1.0, 1.0]
    # As it is seen now: 0.4 rad further counter-clockwise.
    assert scan[int(0.4 / (2 * PI / 180)) + 1] == 1.0


def test_converter_uses_the_times_of_the_header() -> None:
    mount, twist = Pose2D(0.0, 0.0, 0.0), Twist2D(1.0, 0.0, 0.0)
    ranges, step = moving_scan(mount, twist, 360, 0.25)
    convert = ScanConverter(ObservationSpec(frames=1), mount)
    at_once = LaserScan(ranges, -PI, 2 * PI / 360, 0.1, 10.0)
    turning = LaserScan(ranges, -PI, 2 * PI / 360, 0.1, 10.0, time_increment=step)
    np.testing.assert_allclose(convert(turning, twist), 4.0, atol=0.01)
    np.testing.assert_array_equal(convert(at_once, twist), convert(at_once))
    np.testing.assert_array_equal(convert(turning), convert(at_once))


def test_guidance_is_encoded_by_hand() -> None:
    spec = ObservationSpec(guidance=GuidanceSpec())
    assert spec.state_features == 12
    goal, speed = np.array([3.0, 4.0, 0.0]), np.zeros(3)
    state = encode_state(goal, speed, spec, np, np.array([0.6, -0.8, 3.0]))
    assert state[-3:].tolist() == pytest.approx([0.6, -0.8, math.tanh(1.0)])
    np.testing.assert_array_equal(state[:-3], encode_state(goal, speed, ObservationSpec(), np))


def test_guidance_is_worked_out_once_and_only_where_it_is_wanted() -> None:
    guided, plain = ObservationSpec(guidance=GuidanceSpec()), ObservationSpec()
    open_space = np.full((1, 3, 180), 20.0, dtype=np.float32)
    goal = np.array([[3.0, 0.0, 0.0]], dtype=np.float32)
    seen = Triplet(open_space, goal, np.zeros((1, 3), dtype=np.float32))
    assert with_guidance(seen, plain) is seen
    complete = with_guidance(seen, guided)
    assert complete.guidance is not None
    # Nothing in the way: straight ahead.
    assert complete.guidance[0, 0] == pytest.approx(1.0, abs=0.01)
    assert with_guidance(complete, guided) is complete
    one = with_guidance(seen[0], guided)
    assert one.guidance is not None
    np.testing.assert_array_equal(one.guidance, complete.guidance[0])
