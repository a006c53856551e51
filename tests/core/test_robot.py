"""Footprints, limits and lidars: radii by hand, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from scanpilot import resources
from scanpilot.configuration import ConfigurationError
from scanpilot.observation import observation_for
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec, load_robot

SQUARE = ((0.3, 0.2), (-0.3, 0.2), (-0.3, -0.2), (0.3, -0.2))


def spec(**changes: Any) -> RobotSpec:
    values: dict[str, Any] = {
        "name": "test",
        "kinematics": "differential",
        "footprint": Footprint(radius=0.2),
        "limits": Limits(vx=1.0, wz=1.0),
        "lidar": Lidar(beams=8),
    }
    return RobotSpec(**{**values, **changes})


def test_radii_of_a_circle_are_its_radius() -> None:
    footprint = Footprint(radius=0.25)
    assert (footprint.inscribed_radius, footprint.circumscribed_radius) == (0.25, 0.25)


def test_radii_of_a_rectangle_by_hand() -> None:
    footprint = Footprint(polygon=SQUARE)
    assert footprint.inscribed_radius == pytest.approx(0.2)
    assert footprint.circumscribed_radius == pytest.approx(math.sqrt(0.13))


def test_radii_about_a_base_link_off_centre_by_hand() -> None:
    # A box from -0.1 to 0.5 in x and +-0.2 in y: the rear is nearest, the front corners farthest.
    footprint = Footprint(polygon=((0.5, 0.2), (-0.1, 0.2), (-0.1, -0.2), (0.5, -0.2)))
    assert footprint.inscribed_radius == pytest.approx(0.1)
    assert footprint.circumscribed_radius == pytest.approx(math.hypot(0.5, 0.2))


def test_inscribed_radius_of_a_triangle_by_hand() -> None:
    # Equilateral with circumradius 1: the inscribed radius is 1/2.
    corners = tuple((math.cos(a), math.sin(a)) for a in (0.0, 2 * math.pi / 3, 4 * math.pi / 3))
    assert Footprint(polygon=corners).inscribed_radius == pytest.approx(0.5)


@pytest.mark.parametrize(
    "polygon",
    [
        pytest.param(SQUARE[:2], id="two corners"),
        pytest.param(SQUARE[::-1], id="clockwise"),
        pytest.param(((1.0, 0.0), (0.1, 0.1), (0.0, 1.0), (-1.0, -1.0)), id="dented"),
        pytest.param(((1.0, 1.0), (2.0, 1.0), (2.0, 2.0), (1.0, 2.0)), id="base_link outside"),
        pytest.param(((0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)), id="base_link on an edge"),
        pytest.param(((1.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)), id="three in a row"),
        pytest.param(((1.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)), id="repeated corner"),
        # Every corner of a pentagram turns left, but it goes round twice.
        pytest.param(
            tuple((math.cos(4 * math.pi * i / 5), math.sin(4 * math.pi * i / 5)) for i in range(5)),
            id="pentagram",
        ),
        pytest.param(((math.inf, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0)), id="infinite"),
        pytest.param(((math.nan, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0)), id="nan"),
    ],
)
def test_polygons_that_are_no_footprint_are_refused(polygon: Any) -> None:
    with pytest.raises(ValueError, match="footprint polygon"):
        Footprint(polygon=polygon)


@pytest.mark.parametrize("radius", [0.0, -0.1, math.inf, math.nan])
def test_radius_must_be_positive_and_finite(radius: float) -> None:
    with pytest.raises(ValueError, match="footprint radius"):
        Footprint(radius=radius)


def test_footprint_is_a_circle_or_a_polygon_not_both_or_neither() -> None:
    with pytest.raises(ValueError, match="either"):
        Footprint()
    with pytest.raises(ValueError, match="either"):
        Footprint(radius=0.2, polygon=SQUARE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vx", 0.0), ("vx", -1.0), ("vx", math.inf), ("vx", math.nan), ("wz", 0.0), ("wz", math.nan),
        ("vy", -0.1), ("vy", math.inf), ("vy", math.nan), ("ax", 0.0), ("ay", -1.0), ("awz", math.nan),
    ],
)  # fmt: skip
def test_impossible_limits_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"limit {field} "):
        Limits(**{"vx": 1.0, "wz": 1.0, field: value})


def test_full_turn_lidar_does_not_repeat_its_first_direction() -> None:
    # 4 beams over a turn stand 90 degrees apart.
    assert Lidar(beams=4).angle_increment == pytest.approx(math.pi / 2)


def test_partial_lidar_has_beams_on_both_edges() -> None:
    # 5 beams over 180 degrees stand 45 degrees apart.
    assert Lidar(beams=5, angle_min=-math.pi / 2, angle_max=math.pi / 2).angle_increment == pytest.approx(
        math.pi / 4
    )


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("beams", {"beams": 0}),
        ("angles", {"angle_min": 1.0, "angle_max": 1.0}),
        ("angles", {"angle_min": -4.0, "angle_max": 4.0}),
        ("range", {"range_min": 2.0, "range_max": 1.0}),
        ("range", {"range_min": -1.0}),
        ("range", {"range_max": math.inf}),
        ("rate", {"rate": 0.0}),
    ],
)
def test_impossible_lidars_are_refused_by_name(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        Lidar(**{"beams": 8, **values})


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("name", {"name": "a b"}),
        ("name", {"name": ""}),
        # ROS names and topics are ASCII.
        ("name", {"name": "robö"}),
        ("control_period", {"control_period": 0.0}),
        ("control_period", {"control_period": 2.1}),
        ("sideways", {"limits": Limits(vx=1.0, wz=1.0, vy=0.5)}),
        ("vy is 0", {"kinematics": "omnidirectional"}),
        ("turning_radius", {"kinematics": "car"}),
        ("turning_radius", {"turning_radius": 0.5}),
        ("actuation_delay", {"actuation_delay": -0.1}),
    ],
)
def test_contradictory_robots_are_refused(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**changes)


def test_load_robot_reads_yaml(tmp_path: Path) -> None:
    path = tmp_path / "car.yaml"
    path.write_text(
        "name: my_car\nkinematics: car\nturning_radius: 0.8\n"
        "footprint: {polygon: [[0.3, 0.2], [-0.3, 0.2], [-0.3, -0.2], [0.3, -0.2]]}\n"
        "limits: {vx: 2, wz: 1.5, ax: 3}\nlidar: {beams: 720, angle_min: -2.35, angle_max: 2.35}\n"
    )
    assert load_robot(path) == RobotSpec(
        "my_car",
        "car",
        Footprint(polygon=SQUARE),
        Limits(vx=2.0, wz=1.5, ax=3.0),
        Lidar(beams=720, angle_min=-2.35, angle_max=2.35),
        turning_radius=0.8,
    )


def test_bad_robot_file_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "name: bad\nkinematics: differential\nfootprint: {radius: 0.2}\nlimits:\n  vx: -1\n  wz: 1\n"
    )
    with pytest.raises(ConfigurationError, match=r"bad\.yaml:5: limit vx is -1\.0"):
        load_robot(path)


def test_which_robots_are_the_same_in_a_mirror() -> None:
    def robot(footprint: Footprint, **lidar: float) -> RobotSpec:
        return RobotSpec("r", "differential", footprint, Limits(vx=1.0, wz=1.0), Lidar(beams=90, **lidar))

    disc = Footprint(radius=0.2)
    wedge = Footprint(polygon=((0.3, 0.0), (-0.1, 0.2), (-0.1, -0.2)))
    lopsided = Footprint(polygon=((0.3, 0.1), (-0.1, 0.2), (-0.1, -0.2)))
    assert robot(disc).is_symmetric
    assert robot(disc, x=0.1, yaw=1.0).is_symmetric
    assert robot(wedge, angle_min=-2.0, angle_max=2.0).is_symmetric
    assert robot(disc, angle_min=0.0, angle_max=2.0, yaw=-1.0).is_symmetric
    assert not robot(lopsided).is_symmetric
    assert not robot(disc, y=0.01).is_symmetric
    assert not robot(disc, angle_min=-2.0, angle_max=1.9).is_symmetric


@pytest.mark.parametrize("name", sorted(resources.names("robot")))
def test_shipped_robots_are_named_as_their_files_and_can_be_mirrored(name: str) -> None:
    robot = load_robot(resources.find("robot", name))
    assert robot.name == name
    # Else half of what training can learn from each transition is lost without need.
    assert robot.is_symmetric
    # Nothing within the outline, or hidden by the lowest range, is left to run into.
    assert observation_for(robot).range_min <= max(0.05, robot.footprint.inscribed_radius)


def test_a_shipped_car_can_be_steered_as_tightly_as_its_limits_say() -> None:
    robot = load_robot(resources.find("robot", "f1tenth"))
    assert robot.turning_radius == pytest.approx(0.3302 / math.tan(0.4189), abs=1e-3)
    assert robot.limits.wz == pytest.approx(robot.limits.vx / robot.turning_radius, abs=1e-3)
