"""What the containers refuse and how batches behave."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from scanpilot.types import InvalidInput, LaserScan, Triplet, Twist2D


def scan(**changes: Any) -> LaserScan:
    values: dict[str, Any] = {
        "ranges": np.ones(4, np.float32),
        "angle_min": 0.0,
        "angle_increment": 0.1,
        "range_min": 0.1,
        "range_max": 10.0,
    }
    return LaserScan(**{**values, **changes})


def test_angles_count_up_from_angle_min() -> None:
    np.testing.assert_allclose(scan(angle_min=-0.2).angles, [-0.2, -0.1, 0.0, 0.1], atol=1e-15)


def test_angles_run_clockwise_with_a_negative_increment() -> None:
    np.testing.assert_allclose(scan(angle_increment=-0.5).angles, [0.0, -0.5, -1.0, -1.5])


@pytest.mark.parametrize("field", ["angle_min", "angle_increment", "range_min", "range_max"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_header_that_is_not_finite_is_refused_by_name(field: str, bad: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        scan(**{field: bad})


@pytest.mark.parametrize("ranges", [np.zeros(0, np.float32), np.zeros((2, 2), np.float32)])
def test_ranges_must_be_a_row_of_beams(ranges: Any) -> None:
    with pytest.raises(InvalidInput, match="shape"):
        scan(ranges=ranges)


def test_zero_increment_is_refused_for_more_than_one_beam() -> None:
    with pytest.raises(InvalidInput, match="angle_increment is 0"):
        scan(angle_increment=0.0)
    scan(ranges=np.ones(1, np.float32), angle_increment=0.0)


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (1.0, 1.0), (2.0, 1.0)])
def test_range_limits_must_be_ordered(low: float, high: float) -> None:
    with pytest.raises(InvalidInput, match="range_min"):
        scan(range_min=low, range_max=high)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_more_than_a_turn_is_refused_but_a_repeated_first_beam_is_not(sign: float) -> None:
    # 361 beams of 1 degree: the last repeats the first. 400 of them go round more than once.
    degree = sign * math.radians(1.0)
    scan(ranges=np.ones(361, np.float32), angle_increment=degree)
    with pytest.raises(InvalidInput, match="one turn"):
        scan(ranges=np.ones(400, np.float32), angle_increment=degree)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_twist_is_finite_only_if_every_component_is(place: int, bad: float) -> None:
    values = [0.1, 0.2, 0.3]
    assert Twist2D(*values).is_finite()
    values[place] = bad
    assert not Twist2D(*values).is_finite()


def triplet() -> Triplet:
    scans = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return Triplet(scans, np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 7, np.float32))


def test_indexing_a_batch_picks_one_robot() -> None:
    single = triplet()[1]
    assert single.scan.shape == (3, 4)
    assert single.scan[0, 0] == 12.0
    assert single.goal.tolist() == [3.0, 4.0, 5.0]


def test_batched_puts_one_dimension_in_front_once() -> None:
    batch = triplet()[1].batched()
    assert (batch.scan.shape, batch.goal.shape, batch.speed.shape) == ((1, 3, 4), (1, 3), (1, 3))
    assert batch.batched() is batch
    assert (len(batch), len(triplet())) == (1, 2)


def test_single_triplet_has_no_length() -> None:
    with pytest.raises(TypeError):
        len(triplet()[0])


@pytest.mark.parametrize("field", ["scan", "goal", "speed"])
def test_one_number_that_is_not_finite_is_noticed(field: str) -> None:
    value = triplet()
    assert value.is_finite()
    getattr(value, field).reshape(-1)[-1] = math.nan
    assert not value.is_finite()
