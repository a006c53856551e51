"""Scan headers as drivers send them: what is believed, mended, refused, and how it is counted."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scanpilot.audit import OdometryAudit, ScanAudit
from scanpilot.messages import scan_from
from scanpilot.types import InvalidInput, LaserScan, Odometry, Pose2D, Twist2D

PI = math.pi


def header(beams: int, first: float, last: float, increment: float, **others: Any) -> Any:
    """A LaserScan message in all but its class."""
    stamp = SimpleNamespace(sec=1, nanosec=0)
    fields = {"range_min": 0.1, "range_max": 10.0, "time_increment": 0.0, "scan_time": 0.0, **others}
    return SimpleNamespace(
        header=SimpleNamespace(stamp=stamp, frame_id="laser"),
        ranges=np.full(beams, 3.0, np.float32),
        angle_min=first,
        angle_max=last,
        angle_increment=increment,
        **fields,
    )


@pytest.mark.parametrize(
    ("beams", "first", "last", "increment"),
    [
        (5, -1.0, 1.0, 0.5),
        (5, 1.0, -1.0, -0.5),  # clockwise
        (4, -PI, PI / 2, PI / 2),
        (4, 0.0, 2 * PI, PI / 2),  # angle_max names where the turn closes
        (5, -PI, PI, PI / 2),  # the last beam repeats the first
        (360, -PI, PI, float(np.float32(2 * PI / 360))),
        (1, 0.0, 0.0, 0.0),
    ],
)
def test_headers_that_agree_are_believed(beams: int, first: float, last: float, increment: float) -> None:
    scan = scan_from(header(beams, first, last, increment))
    assert (scan.angle_min, scan.angle_increment, scan.repairs) == (first, increment, ())


def test_increment_of_one_beam_too_many_is_mended() -> None:
    # 5 beams over 2 rad: 0.4 rad apart as stated (fov/N), 0.5 as meant (fov/(N-1)).
    scan = scan_from(header(5, -1.0, 1.0, 0.4))
    assert scan.angle_increment == 0.5
    np.testing.assert_allclose(scan.angles, (-1.0, -0.5, 0.0, 0.5, 1.0))
    assert scan.repairs == ("angle_increment did not lead to angle_max: beams spread evenly",)


def test_some_beams_more_or_less_than_the_header_is_made_for_are_spread() -> None:
    for beams in (246, 247, 248):
        scan = scan_from(header(beams, -2.0, 2.0, 4.0 / 246))
        assert scan.angles[-1] == pytest.approx(2.0)
        assert bool(scan.repairs) == (beams != 247)


@pytest.mark.parametrize(
    ("beams", "first", "last", "increment", "words"),
    [
        (360, -PI, PI, -2 * PI / 360, "contradicts itself"),  # another sign than the angles have
        (360, -PI, 0.0, 2 * PI / 360, "end at 3.1241, but angle_max is 0.0000"),
        (100, -1.0, 1.0, 0.03, "contradicts itself"),
        (360, 0.0, math.nan, 0.01, "angle_max is nan"),
        (360, -180.0, 179.0, 1.0, "are they degrees?"),
        (2, 0.0, 1.0, 0.0, "angle_increment is 0"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(
    beams: int, first: float, last: float, increment: float, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        scan_from(header(beams, first, last, increment))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("increment", "scan_time", "believed"),
    [
        (0.01, 0.05, True),
        (0.01, 0.0, True),
        (0.02, 0.05, False),  # 5 beams take 0.08 s, the whole scan 0.05 s
        (0.5, 0.0, False),
        (-0.01, 0.05, False),
        (math.nan, 0.05, False),
    ],
)
def test_time_between_beams_is_believed_if_it_is_possible(
    increment: float, scan_time: float, believed: bool
) -> None:
    scan = scan_from(header(5, -1.0, 1.0, 0.5, time_increment=increment, scan_time=scan_time))
    assert scan.time_increment == (increment if believed else 0.0)
    assert bool(scan.repairs) != believed


def test_the_audit_counts_every_kind_of_reading() -> None:
    ranges = [math.inf, math.nan, math.nan, -math.inf, 0.0, 0.001, -1.0, 10.0, 65.535, 0.05, 1.0, 2.0]
    audit = ScanAudit()
    audit.add(LaserScan(np.array(ranges, np.float32), 1.0, -0.1, 0.1, 10.0, repairs=("mended",)))
    assert audit.shares() == {
        "inf": 1 / 12,
        "nan": 2 / 12,
        "-inf, too close": 1 / 12,
        "zero or code, no return": 3 / 12,
        "at or beyond range_max, no return": 2 / 12,
        "below range_min, taken as obstacle": 1 / 12,
    }
    audit.refuse("no beams")
    words = audit.words()
    for said in ("1 scans of 12 beams", "clockwise", "nan: 16.7 %", "mended: 1 scans", "1 as no beams"):
        assert said in words


def test_the_audit_names_changing_beam_counts_and_a_repeated_beam() -> None:
    audit = ScanAudit()
    for beams in (5, 4):
        audit.add(LaserScan(np.ones(beams, np.float32), -PI, PI / 2, 0.1, 10.0))
    assert "2 scans of 4 to 5 beams" in audit.words()
    assert audit.repairs == {"last beam repeats the first direction": 1}


@pytest.mark.parametrize("parent", [False, True])
def test_velocities_in_the_odometry_frame_are_noticed(parent: bool) -> None:
    # On a circle of 1 m at 0.5 m/s, heading along its tangent.
    audit = OdometryAudit()
    for i in range(60):
        yaw = 0.05 * i
        pose = Pose2D(math.sin(yaw), 1.0 - math.cos(yaw), math.remainder(yaw, 2 * PI))
        twist = Twist2D(0.5, 0.0, 0.5)
        if parent:
            twist = Twist2D(0.5 * math.cos(yaw), 0.5 * math.sin(yaw), 0.5)
        audit.add(Odometry(pose, twist, 0.1 * i))
    assert audit.in_parent_frame == parent


def test_a_robot_that_backs_up_is_no_reason_to_complain() -> None:
    audit = OdometryAudit()
    for i in range(60):
        audit.add(Odometry(Pose2D(0.0, -0.05 * i, PI / 2), Twist2D(-0.5, 0.0, 0.0), 0.1 * i))
    assert not audit.in_parent_frame
