"""map_server maps and Gazebo worlds: meaning of pixels, shapes in space, refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from scanpilot.sim.map_file import read_map_file
from scanpilot.sim.sdf_file import read_sdf_file
from scanpilot.sim.world import World, WorldFileError, signed_area
from scanpilot.sim.world_file import load_world

# Occupied, unknown, free; one row higher: free, free, occupied.
PIXELS = np.array([[254, 254, 0], [0, 150, 254]], np.uint8)


def map_of(folder: Path, extra: str = "", pixels: np.ndarray = PIXELS, **options: bool) -> World:
    Image.fromarray(pixels).save(folder / "map.png")
    text = f"image: map.png\nresolution: 0.5\norigin: [1.0, 2.0, 0.0]\n{extra}"
    (folder / "map.yaml").write_text(text)
    return read_map_file(folder / "map.yaml", **options)


def area(world: World) -> float:
    return sum(signed_area(loop) for solid in world.solids for loop in solid.loops)


def test_cells_lie_where_map_server_puts_them(tmp_path: Path) -> None:
    world = map_of(
        tmp_path, "occupied_thresh: 0.65\nfree_thresh: 0.196\nnegate: 0", unknown_is_obstacle=False
    )
    assert world.bounds == pytest.approx((1.0, 2.0, 2.5, 3.0))
    corners = sorted((float(x), float(y)) for loop in world.solids[0].loops for x, y in loop)
    assert corners[0] == pytest.approx((1.0, 2.0))
    assert corners[-1] == pytest.approx((2.5, 3.0))
    assert area(world) == pytest.approx(2 * 0.25)


def test_unknown_cells_are_solid_unless_told_otherwise(tmp_path: Path) -> None:
    assert area(map_of(tmp_path, "free_thresh: 0.196")) == pytest.approx(3 * 0.25)
    # 150 of 255 is an occupancy of 0.41.
    assert area(map_of(tmp_path, "free_thresh: 0.5")) == pytest.approx(2 * 0.25)
    assert area(map_of(tmp_path, "occupied_thresh: 0.4\nfree_thresh: 0.1", unknown_is_obstacle=False)) == 0.75


def test_negate_and_raw(tmp_path: Path) -> None:
    assert area(map_of(tmp_path, "negate: 1", unknown_is_obstacle=False)) == pytest.approx(3 * 0.25)
    raw = np.array([[0, 100, 255], [66, 64, 20]], np.uint8)
    assert area(map_of(tmp_path, "mode: raw", raw, unknown_is_obstacle=False)) == pytest.approx(2 * 0.25)
    # 255 and 64 are neither free nor occupied.
    assert area(map_of(tmp_path, "mode: raw", raw)) == pytest.approx(4 * 0.25)


def test_transparent_is_unknown_in_scale_mode(tmp_path: Path) -> None:
    pixels = np.zeros((1, 2, 4), np.uint8)
    pixels[0, 1, 3] = 255
    assert area(map_of(tmp_path, "mode: scale", pixels, unknown_is_obstacle=False)) == pytest.approx(0.25)
    assert area(map_of(tmp_path, "mode: trinary", pixels, unknown_is_obstacle=False)) == pytest.approx(0.5)


def test_origin_turns_the_map(tmp_path: Path) -> None:
    map_of(tmp_path)
    text = (tmp_path / "map.yaml").read_text().replace("2.0, 0.0]", f"2.0, {math.pi / 2}]")
    (tmp_path / "map.yaml").write_text(text)
    assert read_map_file(tmp_path / "map.yaml").bounds == pytest.approx((0.0, 2.0, 1.0, 3.5))


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "I;16"])
def test_every_kind_of_image_means_the_same(tmp_path: Path, mode: str) -> None:
    expected = area(map_of(tmp_path, "free_thresh: 0.196"))
    grey = Image.fromarray(PIXELS)
    sixteen = Image.fromarray(PIXELS.astype(np.uint16) * 257)
    (sixteen if mode == "I;16" else grey.convert(mode)).save(tmp_path / "map.png")
    assert area(read_map_file(tmp_path / "map.yaml")) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("image: map.png", "image: none.png", "map.yaml:1: image 'none.png' not found"),
        ("image: map.png", "image: map.yaml", "map.yaml:1: image"),
        ("image: map.png", "", "map.yaml: lacks image"),
        ("resolution: 0.5", "resolution: 0", "map.yaml:2: resolution is 0.0 m, expected more than 0"),
        ("resolution: 0.5", "resolution: .nan", "map.yaml:2: resolution is '.nan', expected a number"),
        ("origin: [1.0, 2.0, 0.0]", "origin: 3", "map.yaml:3: origin is not a list"),
        ("resolution: 0.5", "resolution: ", "map.yaml:2: resolution is '', expected a number"),
        ("origin", "mode: best\norigin", "map.yaml:3: mode is 'best', expected one of trinary, scale, raw"),
        ("origin", "occupied_thresh: 7\norigin", "map.yaml:3: occupied_thresh is 7.0, expected 0 to 1"),
        ("image: map.png", "image: [", "not valid YAML"),
        (
            "image: map.png\nresolution: 0.5\norigin: [1.0, 2.0, 0.0]\n",
            "text",
            "map.yaml:1: expected a mapping",
        ),
    ],
)
def test_map_refusals(tmp_path: Path, old: str, new: str, message: str) -> None:
    map_of(tmp_path)
    text = (tmp_path / "map.yaml").read_text()
    (tmp_path / "map.yaml").write_text(text.replace(old, new))
    with pytest.raises(WorldFileError) as caught:
        load_world(tmp_path / "map.yaml")
    assert message in str(caught.value)


# --- SDF


def sdf_of(folder: Path, body: str, height: float = 0.2) -> World:
    (folder / "test.sdf").write_text(f"<sdf version='1.6'>\n<world name='w'>\n{body}\n</world></sdf>")
    return read_sdf_file(folder / "test.sdf", height=height)


def model(shape: str, pose: str = "0 0 0 0 0 0", inner: str = "") -> str:
    return (
        f"<model name='m'><pose>{pose}</pose><link name='l'>{inner}<collision name='c'>"
        f"<geometry>{shape}</geometry></collision></link></model>"
    )


BOX = "<box><size>2 1 1</size></box>"


def test_box_is_cut_at_the_height(tmp_path: Path) -> None:
    world = sdf_of(tmp_path, model(BOX, "1 2 0.5 0 0 1.5707963"))
    assert world.bounds == pytest.approx((0.5, 1.0, 1.5, 3.0), abs=1e-6)
    assert len(world.segments) == 4
    assert not len(sdf_of(tmp_path, model(BOX, "1 2 0.5 0 0 0"), height=1.1).segments)


def test_a_tilted_box_shows_its_slice(tmp_path: Path) -> None:
    # Rolled by 45 degrees about x: at its centre's height it is as wide as its diagonal.
    world = sdf_of(tmp_path, model(BOX, "0 0 0.2 0.785398163 0 0"))
    assert world.bounds == pytest.approx((-1.0, -math.sqrt(0.5), 1.0, math.sqrt(0.5)), abs=1e-6)


def test_round_shapes(tmp_path: Path) -> None:
    cylinder = "<cylinder><radius>0.3</radius><length>1</length></cylinder>"
    assert sdf_of(tmp_path, model(cylinder, "1 2 0 0 0 0")).circles == pytest.approx(np.array([[1, 2, 0.3]]))
    lying = sdf_of(tmp_path, model(cylinder, "0 0 0.2 0 1.5707963 0"))
    assert lying.bounds == pytest.approx((-0.5, -0.3, 0.5, 0.3), abs=1e-5)
    sphere = model("<sphere><radius>0.5</radius></sphere>", "0 0 0.6 0 0 0")
    assert sdf_of(tmp_path, sphere).circles[0, 2] == pytest.approx(0.3)
    assert not len(sdf_of(tmp_path, model("<plane><normal>0 0 1</normal></plane>")).segments)


def test_poses_nest_and_saved_state_wins(tmp_path: Path) -> None:
    nested = f"<model name='outer'><pose>1 0 0 0 0 1.5707963</pose>{model(BOX, '2 0 0 0 0 0')}</model>"
    assert sdf_of(tmp_path, nested).bounds == pytest.approx((0.5, 1.0, 1.5, 3.0), abs=1e-6)
    state = "<state world_name='w'><model name='m'><pose>5 5 0 0 0 0</pose></model></state>"
    assert sdf_of(tmp_path, model(BOX) + state).bounds == pytest.approx((4.0, 4.5, 6.0, 5.5))
    shape = f"<collision name='c'><geometry>{BOX}</geometry></collision>"
    relative = (
        "<model name='m'><link name='a'><pose>3 0 0 0 0 0</pose></link>"
        f"<link name='b'><pose relative_to='a'>0 1 0 0 0 0</pose>{shape}</link></model>"
    )
    assert sdf_of(tmp_path, relative).bounds == pytest.approx((2.0, 0.5, 4.0, 1.5))


def test_includes_are_found_and_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "elsewhere" / "shelf"
    shelf.mkdir(parents=True)
    (shelf / "model.sdf").write_text(f"<sdf version='1.6'>{model(BOX, '9 9 0 0 0 0')}</sdf>")
    include = (
        "<include><uri>model://shelf</uri><pose>1 1 0 0 0 0</pose></include>"
        "<include><uri>model://sun</uri></include>"
    )
    with pytest.raises(WorldFileError, match=r"test\.sdf:3: include 'model://shelf' not found"):
        sdf_of(tmp_path, include)
    monkeypatch.setenv("GZ_SIM_RESOURCE_PATH", str(tmp_path / "elsewhere"))
    assert sdf_of(tmp_path, include).bounds == pytest.approx((0.0, 0.5, 2.0, 1.5))
    (shelf / "model.sdf").write_text(
        "<sdf version='1.6'><model name='m'><include><uri>model://shelf</uri></include></model></sdf>"
    )
    with pytest.raises(WorldFileError, match="does one include itself"):
        sdf_of(tmp_path, include)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (model("<box><size>2 1</size></box>"), "test.sdf:3: <size> holds '2 1', expected 3 number(s)"),
        (model("<box><size>2 1 -1</size></box>"), "expected more than 0"),
        (model("<box/>"), "<box> lacks <size>"),
        (model(BOX, "0 0 nan 0 0 0"), "<pose> holds"),
        ("<model>", "test.sdf:4: not well-formed XML"),
        (model(BOX).replace("<pose>", "<pose relative_to='x'>"), "pose is relative to 'x'"),
    ],
)
def test_sdf_refusals(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(WorldFileError) as caught:
        sdf_of(tmp_path, body)
    assert message in str(caught.value)


def test_document_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.sdf").write_text("<!DOCTYPE a [<!ENTITY b 'c'>]><sdf>&b;</sdf>")
    with pytest.raises(WorldFileError, match="a document type"):
        load_world(tmp_path / "bomb.sdf")
    (tmp_path / "other.sdf").write_text("<urdf/>")
    with pytest.raises(WorldFileError, match="not <sdf>"):
        load_world(tmp_path / "other.sdf")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_mangled_sdf_gives_clean_errors(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = list(f"<sdf version='1.6'><world name='w'>{model(BOX, '1 2 0 0 0 1')}</world></sdf>")
    for _ in range(rng.integers(1, 8)):
        at = int(rng.integers(len(text)))
        if rng.random() < 0.5:
            del text[at]
        else:
            text[at] = chr(int(rng.choice([*b"<>/'=- 09.ae"])))
    path = tmp_path_factory.mktemp("mangled") / "mangled.sdf"
    path.write_text("".join(text))
    reason = None
    try:
        assert np.isfinite(load_world(path).segments).all()
    except WorldFileError as error:
        reason = str(error)
    assert reason is None or "mangled.sdf:" in reason


def test_other_peoples_maps_and_gazebo_worlds(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAZEBO_MODEL_PATH", str(data / "gazebo_worlds" / "turtlebot3" / "models"))
    files = [*(data / "ros_maps").rglob("*.yaml"), *(data / "gazebo_worlds").rglob("*.world")]
    files += (data / "gazebo_worlds").rglob("*.sdf")
    reasons = []
    for path in sorted(files):
        try:
            assert np.isfinite(load_world(path).segments).all()
        except WorldFileError as error:  # noqa: PERF203 - a handful of files
            reasons.append(str(error))
    assert len(files) >= 30
    # One image was left out on purpose, another is genuinely missing.
    assert len(reasons) == 2
    assert all("not found" in reason for reason in reasons)


def test_barn_world_has_the_cylinders_of_its_list(data: Path) -> None:
    barn = np.load(data / "barn" / "barn_dev_worlds.npz")
    index = int(np.flatnonzero(barn["world_index"] == 100)[0])
    first, last = barn["cylinder_offsets"][index : index + 2]
    expected = barn["cylinder_centres"][first:last]
    world = load_world(data / "gazebo_worlds" / "barn_100.world")
    nearest = np.hypot(*(world.circles[:, None, :2] - expected[None]).transpose(2, 0, 1)).min(axis=0)
    assert nearest.max() < 1e-6
    assert set(world.circles[:, 2]) == {0.075}
