"""The Stage reader: grammar, geometry, robots, refusals; our own worlds and other people's."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from scanpilot.sim import generate
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import OBSTACLE, VISIBLE, World, signed_area
from scanpilot.sim.world_file import (
    WorldFileError,
    load_world,
    main_lidar,
    robot_spec,
    seen_outline,
    with_static_robots,
    write_world_file,
)

ROOT = Path(__file__).resolve().parents[2]


def read(folder: Path, text: str, **files: str) -> World:
    for name, content in files.items():
        (folder / f"{name}.inc").write_text(content)
    (folder / "test.world").write_text(text)
    return load_world(folder / "test.world")


def refused(folder: Path, text: str, **files: str) -> str:
    with pytest.raises(WorldFileError) as caught:
        read(folder, text, **files)
    return str(caught.value)


def refusal(path: Path) -> str | None:
    """Why a file is refused; None when it loads into finite geometry."""
    try:
        world = load_world(path)
    except WorldFileError as error:
        return str(error)
    assert np.isfinite(world.segments).all()
    return None


def extent(world: World, solid: int = 0) -> tuple[float, ...]:
    corners = np.concatenate(world.solids[solid].loops)
    return tuple(float(v) for v in (*corners.min(axis=0), *corners.max(axis=0)))


def test_a_model_is_a_box_of_its_size_at_its_pose(tmp_path: Path) -> None:
    world = read(tmp_path, "model ( pose [ 1 2 0 90 ] size [ 4 2 1 ] )")
    assert extent(world) == pytest.approx((0.0, 0.0, 2.0, 4.0))
    assert extent(read(tmp_path, "model ()")) == pytest.approx((-0.2, -0.2, 0.2, 0.2))


def test_blocks_are_centred_and_scaled_together(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        """model ( size [ 2 1 0.5 ]
        block ( points 4 point[0] [0 0] point[1] [1 0] point[2] [1 1] point[3] [0 1] z [0 1] )
        block ( points 3 point[0] [3 0] point[1] [4 0] point[2] [3.5 1] z [0 2] ) )""",
    )
    assert extent(world, 0) == pytest.approx((-1.0, -0.5, -0.5, 0.5))
    assert extent(world, 1) == pytest.approx((0.5, -0.5, 1.0, 0.5))
    assert world.solids[0].z == pytest.approx((0.0, 0.25))
    assert world.solids[1].z == pytest.approx((0.0, 0.5))


def test_origin_moves_the_body_about_the_pose(tmp_path: Path) -> None:
    world = read(tmp_path, "model ( pose [ 1 0 0 90 ] origin [ 0.5 0 0 0 ] size [ 0.2 0.2 1 ] )")
    assert extent(world) == pytest.approx((0.9, 0.4, 1.1, 0.6))


def test_units(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        """unit_length "cm" unit_angle "radians"
        model ( pose [ 100 0 0 1.5707963 ] size [ 40 20 10 ] )
        position ( size [ 40 40 20 ] ranger ( sensor ( range [ 0 300 ] fov 3.14159265 samples 3 ) ) )""",
    )
    assert extent(world) == pytest.approx((0.9, -0.2, 1.1, 0.2), abs=1e-6)
    lidar = world.robots[0].lidars[0].lidar
    assert lidar.range_max == pytest.approx(3.0)
    assert lidar.angle_max == pytest.approx(math.pi / 2)


def test_first_define_last_property_and_the_instance_win(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        """define thing model ( size [ 1 1 1 ] size [ 2 2 1 ] color "red" model ( size [ 0.5 0.5 0.5 ] ) )
        define thing model ( size [ 9 9 9 ] )
        define bigger thing ( color "blue" model ( size [ 0.1 0.1 0.1 ] ) )
        bigger ( size [ 3 3 1 ] name "it" )""",
    )
    assert [extent(world, i)[2] for i in range(3)] == pytest.approx([1.5, 0.25, 0.05])
    assert world.solids[0].color == "blue"
    # Children stand on top.
    assert world.solids[1].z == pytest.approx((1.0, 1.5))
    assert [s.name for s in world.solids] == ["it", "it.model:0", "it.model:1"]


def test_a_define_may_use_what_is_defined_later(tmp_path: Path) -> None:
    world = read(tmp_path, "define a b ( size [ 1 1 1 ] ) define b model ( size [ 5 5 5 ] ) a ()")
    assert extent(world)[2] == pytest.approx(0.5)


def test_nested_includes_start_from_the_top_level_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "outer.inc").write_text('include "sub/inner.inc"')
    (tmp_path / "sub" / "inner.inc").write_text("define thing model ( size [ 2 2 2 ] )")
    world = read(tmp_path, 'include "sub/outer.inc"\nthing ()')
    assert extent(world)[2] == pytest.approx(1.0)


def test_bitmap_is_stretched_by_the_box_of_its_dark_pixels(tmp_path: Path) -> None:
    pixels = np.full((10, 10), 255, np.uint8)
    pixels[2, 3:7] = 0  # a bar on top
    pixels[3:6, 3] = 127  # and a leg down its left side
    pixels[9, 9] = 128  # not dark enough
    Image.fromarray(pixels).save(tmp_path / "map.png")
    world = read(tmp_path, 'model ( bitmap "map.png" size [ 4 4 1 ] )')
    assert extent(world) == pytest.approx((-2.0, -2.0, 2.0, 2.0))
    # Four columns and four rows of 1 m: the bar is 4 cells, the leg 3 more; the image's top is +y.
    assert sum(signed_area(loop) for loop in world.solids[0].loops) == pytest.approx(7.0)
    inside = FreeSpace(world, robot_spec_of(tmp_path).footprint).clearance
    assert inside[35, 35] == 0.0
    assert inside[5, 5] == 0.0
    assert inside[5, 35] > 1.0


def robot_spec_of(folder: Path):  # type: ignore[no-untyped-def]
    other = folder / "robot.world"
    other.write_text("position ( size [ 0.2 0.2 0.2 ] ranger ( sensor () ) )")
    return robot_spec(load_world(other).robots[0])


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "I;16"])
def test_bitmaps_of_every_kind_mean_the_same(tmp_path: Path, mode: str) -> None:
    grey = Image.fromarray(np.array([[0, 255, 0], [255, 255, 0]], np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.array([[0, 65535, 0], [65535, 65535, 0]], np.uint16))
    elif mode in ("LA", "RGBA"):
        image = grey.convert(mode)
        image.putalpha(0)  # alpha is ignored
    else:
        image = grey.convert(mode)
    image.save(tmp_path / "map.png")
    world = read(tmp_path, 'model ( bitmap "map.png" size [ 3 2 1 ] )')
    assert sum(signed_area(loop) for loop in world.solids[0].loops) == pytest.approx(3.0)


def test_boundary_adds_four_thin_walls(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        "model ( size [ 10 6 1 ] boundary 1 block ( points 3 point[0] [0 0] point[1] [100 0] "
        "point[2] [0 60] ) )",
    )
    assert len(world.solids) == 5
    assert extent(world, 4) == pytest.approx((4.999, -3.0, 5.0, 3.0))


def test_robot_and_lidars(tmp_path: Path) -> None:
    robot = read(
        tmp_path,
        """define eye ranger ( pose [ 0.1 0 -0.05 90 ] size [ 0.05 0.05 0.05 ]
          sensor ( pose [ 0.02 0 0.1 0 ] fov 180 range [ 0.2 6 ] samples 5 ) )
        position ( pose [ 1 2 0 180 ] size [ 0.6 0.4 0.3 ] origin [ 0.1 0 0 0 ] drive "omni"
          velocity_bounds [ -0.5 0.8 -0.3 0.3 0 0 -90 45 ] eye () eye ( pose [ 0 0 0 0 ] ) )""",
    ).robots[0]
    assert robot.name == "position:0"
    assert robot.pose == pytest.approx((1.0, 2.0, -math.pi))
    assert robot.kinematics == "omnidirectional"
    assert robot.footprint.polygon is not None
    corners = [(-0.2, -0.2), (-0.2, 0.2), (0.4, -0.2), (0.4, 0.2)]
    assert np.array(sorted(robot.footprint.polygon)) == pytest.approx(np.array(corners))
    assert robot.velocity_bounds == pytest.approx((0.8, 0.3, math.pi / 2))
    first, second = robot.lidars
    assert (first.lidar.x, first.lidar.y, first.lidar.yaw) == pytest.approx((0.1, 0.02, math.pi / 2))
    assert (first.lidar.range_min, first.lidar.range_max, first.lidar.beams) == (0.2, 6.0, 5)
    assert first.height == pytest.approx(0.3 - 0.05 + 0.1 + 0.01)
    assert second.lidar.yaw == 0.0


def test_sensor_and_position_defaults(tmp_path: Path) -> None:
    robot = read(tmp_path, "position ( ranger ( sensor () ) )").robots[0]
    lidar = robot.lidars[0].lidar
    assert (lidar.beams, lidar.angle_min, lidar.range_min, lidar.range_max) == (1, 0.0, 0.0, 5.0)
    assert lidar.angle_max == pytest.approx(0.05)
    assert robot.kinematics == "differential"
    assert robot.velocity_bounds == pytest.approx((1.0, 1.0, math.pi / 2))
    # A ranger has no body of its own.
    assert len(robot.parts) == 1


def test_height_and_returns_decide_what_is_seen_and_hit(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        """position ( pose [ 3 0 0 0 ] size [ 0.4 0.4 0.2 ]
          ranger ( pose [ 0 0 0 0 ] sensor ( samples 3 fov 90 ) ) )
        model ( name "kerb" size [ 1 1 0.1 ] )
        model ( name "shelf" size [ 1 1 0.1 ] pose [ 0 0 0.205 0 ] )
        model ( name "ghost" size [ 1 1 1 ] obstacle_return 0 )
        model ( name "glass" size [ 1 1 1 ] ranger_return -1 )""",
    )
    flags = dict(zip([s.name for s in world.solids], world.segment_flags[::4].tolist(), strict=True))
    assert flags == {"kerb": OBSTACLE, "shelf": VISIBLE, "ghost": VISIBLE, "glass": OBSTACLE}


def test_others_can_be_made_static(tmp_path: Path) -> None:
    world = read(
        tmp_path, 'position ( name "a" ranger ( sensor () ) ) position ( name "b" pose [ 2 0 0 0 ] )'
    )
    still = with_static_robots(world, frozenset(["a"]))
    assert [r.name for r in still.robots] == ["a"]
    assert extent(still) == pytest.approx((1.8, -0.2, 2.2, 0.2))


def test_a_block_around_a_robot_is_a_room(tmp_path: Path) -> None:
    world = read(
        tmp_path,
        """model ( name "room" size [ 6 4 1 ] )
        position ( pose [ 1 0 0 0 ] size [ 0.4 0.4 0.4 ]
          ranger ( sensor ( fov 180 samples 3 range [ 0 9 ] ) ) )""",
    )
    robot = world.robots[0]
    simulator = Simulator([world], robot_spec(robot), 1)
    simulator.place([0], np.array([robot.pose]))
    assert simulator.scan()[0] == pytest.approx([2.0, 2.0, 2.0])
    assert simulator.clearance()[0] == pytest.approx(1.8)
    assert FreeSpace(world, robot.footprint).is_free(np.array([robot.pose])).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('include "none.inc"', "test.world:1: include 'none.inc' not found"),
        ('include "no\0ne.inc"', "test.world:1: include 'no\\x00ne.inc' not found"),
        ("include none", "test.world:1: include is followed by 'none', expected a file name in quotes"),
        ('\nmodel ( bitmap "none.png" )', "test.world:2: bitmap 'none.png' not found"),
        ("model (\n pose [ 1, 2 ] )", "test.world:2: cannot read ', 2 ] )'"),
        ("model ( pose [ 1 2 )", "expected ]"),
        ("model (", "test.world:1: missing ) of model"),
        ("model ())", "test.world:1: unexpected ')'"),
        ("model ( name it )", "name is followed by 'it', expected a number, a string, [ or ("),
        ("model ( size\n [ 1 1 1 ] )", "size has no value on its line"),
        ("define thing ( )", "expected: define NEW BASE ( ... )"),
        ("define a a ( ) a ( )", "does a define use itself?"),
        ("laser ( )", "'laser' is a type of old Stage files, expected ranger with a sensor"),
        ("wheel ( )", "unknown type 'wheel'"),
        ("model ( size [ 1e-3 1 1 ] )", "unexpected 'e-3'"),
        ("model ( size [ 1.2.3 1 1 ] )", "size has '1.2.3', expected a number"),
        ("model ( size [ -1 1 1 ] )", "size is -1.0 1.0 1.0, expected numbers of 0 or more"),
        ("model ( block ( points 2 point[0] [ 0 0 ] ) )", "states 2 points but lacks point[1]"),
        ('position ( drive "legs" )', "drive is 'legs'"),
        ("position ( ranger ( sensor ( samples 0 ) ) )", "samples is 0"),
        ("position ( ranger ( sensor ( range [ 2 1 ] ) ) )", "range is [2 1]"),
        ("position ( origin [ 5 0 0 0 ] )", "no usable footprint"),
        ('unit_length "inch"', "unit_length is 'inch'"),
        ("interval_sim 0", "interval_sim is 0"),
    ],
)
def test_refusals_name_file_line_and_reason(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_an_error_in_an_include_names_the_include(tmp_path: Path) -> None:
    assert "a.inc:2: unexpected" in refused(tmp_path, 'include "a.inc"', a="model (\n5 )")
    assert "includes itself" in refused(tmp_path, 'include "a.inc"', a='include "a.inc"')


def test_missing_or_unknown_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorldFileError, match=r"none\.world: cannot be read"):
        load_world(tmp_path / "none.world")
    with pytest.raises(WorldFileError, match=r"unknown kind of world file '\.txt'"):
        load_world(tmp_path / "a.txt")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_mangled_files_give_clean_errors(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = list((ROOT / "worlds" / "generic_diff.inc").read_text() + "generic_diff ( pose [ 1 2 0 3 ] )")
    for _ in range(rng.integers(1, 12)):
        at = int(rng.integers(len(text)))
        action = rng.integers(3)
        if action == 0:
            del text[at]
        elif action == 1:
            text[at] = chr(int(rng.choice([*b'()[]"#-.0 9\nae'])))
        else:
            other = int(rng.integers(len(text)))
            text[at:at] = text[other : other + int(rng.integers(60))]
    path = tmp_path_factory.mktemp("mangled") / "mangled.world"
    path.write_text("".join(text))
    assert "mangled.world:" in (refusal(path) or "mangled.world:")


@pytest.mark.parametrize("name", ["demo", "rooms"])
def test_our_own_worlds(name: str) -> None:
    world = load_world(ROOT / "worlds" / f"{name}.world")
    assert len(world.robots) >= 2
    robot = world.robots[0]
    spec = robot_spec(robot)
    assert spec.footprint.circumscribed_radius == pytest.approx(0.2)
    simulator = Simulator([world], spec, len(world.robots))
    simulator.place(np.arange(len(world.robots)), np.array([r.pose for r in world.robots]))
    assert (simulator.clearance() > 0.15).all()
    space = FreeSpace(world, spec.footprint)
    assert space.is_free(np.array([r.pose for r in world.robots])).all()
    assert space.largest_share > 0.95
    lidar = main_lidar(robot)
    assert lidar is not None
    # Robots see each other's bodies, also in Stage.
    assert seen_outline(robot, lidar.height) is not None


def test_other_peoples_worlds_load_or_are_refused_with_a_line(data: Path) -> None:
    loaded = refused_files = 0
    for path in sorted((data / "stage_worlds").rglob("*.world")):
        reason = refusal(path)
        if reason is None:
            loaded += 1
        else:
            refused_files += 1
            assert ".world:" in reason or ".inc:" in reason
    assert loaded >= 21
    # Old syntax and files that are genuinely missing.
    assert refused_files <= 19


@pytest.mark.parametrize("name", ["demo", "rooms", "clutter"])
def test_what_is_written_reads_the_same(tmp_path: Path, name: str) -> None:
    world = generate.clutter(5) if name == "clutter" else load_world(ROOT / "worlds" / f"{name}.world")
    write_world_file(world, tmp_path / "copy.world")
    copy = load_world(tmp_path / "copy.world")
    assert copy.interval == pytest.approx(world.interval)
    spec = robot_spec_of(tmp_path)
    space, rng = FreeSpace(world, spec.footprint), np.random.default_rng(0)
    lidar = replace(spec.lidar, beams=90, angle_min=-math.pi, angle_max=math.pi, range_max=12.0)
    poses = np.array([space.sample(rng)[0] for _ in range(10)])
    both = []
    for each in (world, copy):
        simulator = Simulator([each], replace(spec, lidar=lidar), 10, SimulatorConfig(robots_visible=False))
        simulator.place(np.arange(10), poses)
        both.append(simulator.scan())
    # Discs have become polygons, whose sides cut off 2 mm at most; grazing beams multiply it.
    assert np.quantile(np.abs(both[0] - both[1]), 0.97) < 5e-3
