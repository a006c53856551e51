"""`scanpilot world`: pictures, conversion, and what it says of worlds that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scanpilot import cli, resources
from scanpilot.robot import Footprint
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.sources import worlds
from scanpilot.sim.world_file import load_world

SDF = """<sdf version="1.7"><world name="two">
<model name="box"><static>true</static><pose>2 1 0.5 0 0 0.5</pose><link name="l">
<collision name="c"><geometry><box><size>1 2 1</size></box></geometry></collision></link></model>
<model name="post"><static>true</static><pose>-2 0 0.5 0 0 0</pose><link name="l"><collision name="c">
<geometry><cylinder><radius>0.5</radius><length>1</length></cylinder></geometry></collision></link></model>
</world></sdf>
"""
MAP = "image: map.png\nresolution: 0.1\norigin: [-1, -2, 0.3]\nnegate: 0\n" + (
    "occupied_thresh: 0.65\nfree_thresh: 0.2\n"
)


def _map(folder: Path) -> Path:
    cells = np.full((40, 60), 255, dtype=np.uint8)
    cells[[0, -1]] = cells[:, [0, -1]] = 0
    cells[10:20, 25:30] = 0
    Image.fromarray(cells).save(folder / "map.png")
    (folder / "map.yaml").write_text(MAP)
    return folder / "map.yaml"


def _sdf(folder: Path) -> Path:
    (folder / "two.sdf").write_text(SDF)
    return folder / "two.sdf"


@pytest.mark.parametrize("kind", ["shipped", "path", "map", "sdf", "generated"])
def test_every_kind_of_world_is_drawn(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {
        "shipped": lambda: "demo",
        "path": lambda: resources.find("world", "rooms"),
        "map": lambda: _map(tmp_path),
        "sdf": lambda: _sdf(tmp_path),
        "generated": lambda: "maze:3",
    }
    out = tmp_path / "world.png"
    assert cli.main(["world", "show", str(names[kind]()), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    picture = np.asarray(Image.open(out).convert("RGB"))
    assert min(picture.shape[:2]) > 200
    # Something is drawn in it, and it is not all.
    assert 0.005 < np.mean(picture.min(axis=2) < 200) < 0.9


@pytest.mark.parametrize("kind", ["map", "sdf", "generated"])
def test_a_converted_world_is_the_same_world(kind: str, tmp_path: Path) -> None:
    name = {
        "map": lambda: str(_map(tmp_path)),
        "sdf": lambda: str(_sdf(tmp_path)),
        "generated": lambda: "rooms:5",
    }[kind]()
    before = worlds("rooms", "test", 5)(0) if kind == "generated" else load_world(name)
    out = tmp_path / "out.world"
    assert cli.main(["world", "convert", name, "--out", str(out)]) == 0
    after = load_world(out)
    np.testing.assert_allclose(after.bounds, before.bounds, atol=0.01)
    # Clearances on one grid; discs became polygons of 32 corners.
    footprint = Footprint(radius=0.1)
    spaces = [FreeSpace(w, footprint, resolution=0.1) for w in (before, after)]
    # A Stage file does not say that robots are meant to be within the walls: another grid.
    if kind != "generated":
        np.testing.assert_allclose(spaces[0].clearance, spaces[1].clearance, atol=0.02)
    assert spaces[1].area == pytest.approx(spaces[0].area, rel=0.02)


def test_robots_are_left_out_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.world"
    assert cli.main(["world", "convert", "demo", "--out", str(out)]) == 0
    robots = len(load_world(resources.find("world", "demo")).robots)
    assert robots
    assert f"left out {robots} robots" in capsys.readouterr().out
    assert not load_world(out).robots


@pytest.mark.parametrize(
    ("text", "line"),
    [("model ( size [1 2 3] )\nmodel ( pose [ 1 2 0 ] ", 2), ('include "nowhere.inc"', 1)],
)
def test_a_wrong_file_is_named_with_its_line(
    text: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.world"
    file.write_text(text)
    for action, out in (("show", "x.png"), ("convert", "x.world")):
        assert cli.main(["world", action, str(file), "--out", str(tmp_path / out)]) == 1
        assert f"scanpilot world: {file}:{line}" in capsys.readouterr().err
        assert not (tmp_path / out).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "dmo", "--out", "x.png"], "did you mean demo?"),
        (["show", "no/such.world", "--out", "x.png"], "no/such.world"),
        (["show", "maze", "--out", "x.png"], "expected a seed, such as maze:7"),
        (["show", "maze:x", "--out", "x.png"], "expected a seed, such as maze:7"),
        (["show", "demo", "--out", "x.jpeg2"], "x.jpeg2"),
        (["show", ".", "--out", "x.png"], "unknown kind of world file"),
        (["show", "demo", "--out", "no/such/folder.png"], "no/such/folder.png"),
        (["convert", "demo", "--out", "x.txt"], "ends in .world"),
        (["convert", "demo", "--out", "folder.world"], "folder.world"),
    ],
)
def test_mistakes_are_named_without_a_traceback(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.world").mkdir()
    assert cli.main(["world", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_it_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scanpilot.cli", "world", "show", "nowhere", "--out", "x.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("scanpilot world: world nowhere: neither shipped")
    assert "Traceback" not in done.stderr
