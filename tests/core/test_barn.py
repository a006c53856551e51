"""BARN's metric on given times, its worlds from arrays and folders, its start and goal."""

import os
from pathlib import Path

import numpy as np
import pytest

from scanpilot import resources
from scanpilot.evaluation import barn
from scanpilot.evaluation.difficulty import straight
from scanpilot.evaluation.runner import evaluate
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.world import WorldFileError
from scanpilot.types import InvalidInput

SHARED = Path(os.environ.get("SCANPILOT_DATA", resources.root().parent / "shared" / "data"))
ROBOT = RobotSpec(
    "jackal",
    "differential",
    barn.JACKAL,
    Limits(vx=2.0, wz=4.0),
    Lidar(beams=720, angle_min=-0.75 * np.pi, angle_max=0.75 * np.pi, range_max=30.0),
    control_period=0.1,
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # 10 m at 2 m/s: OT = 5 s.
        (5.0, 0.5),  # as fast as can be: clipped to 2 OT
        (10.0, 0.5),  # 2 OT
        (20.0, 0.25),  # 5 / 20
        (40.0, 0.125),  # 8 OT
        (90.0, 0.125),  # clipped to 8 OT
    ],
)
def test_the_metric_is_the_published_formula_on_given_times(seconds: float, expected: float) -> None:
    assert barn.score(True, 10.0, seconds) == pytest.approx(expected)
    assert barn.score(False, 10.0, seconds) == 0.0


def test_the_official_robot_is_known_and_others_are_told() -> None:
    assert barn.differences(ROBOT) == []
    other = RobotSpec(
        "small", "differential", Footprint(radius=0.2), Limits(vx=1.0, wz=1.5), Lidar(beams=360)
    )
    told = " ".join(barn.differences(other))
    assert "footprint" in told
    assert "1 m/s, not 2" in told
    assert "360 beams" in told


def _arrays(path: Path) -> Path:
    """Two worlds: one with nothing in the way, one with a wall of cylinders across the straight line."""
    aside = np.array([(-4.4, 5.0), (-0.1, 5.0)])
    wall = np.stack((np.linspace(-3.0, -1.5, 11), np.full(11, 8.0)), axis=1)
    worlds = [aside, np.concatenate((aside, wall))]
    straight_path = np.array([(-2.25, 3.0), (-2.25, 13.0)])
    np.savez(
        path,
        world_index=np.array([1, 2]),
        cylinder_centres=np.concatenate(worlds),
        cylinder_offsets=np.array([0, 2, 15]),
        reference_paths=np.concatenate((straight_path, [(-2.25, 3.0), (-3.5, 8.0), (-2.25, 13.0)])),
        path_offsets=np.array([0, 2, 5]),
    )
    return path


def test_straight_driving_scores_where_nothing_stands_and_collides_at_a_wall(tmp_path: Path) -> None:
    suite = barn.load(_arrays(tmp_path / "worlds.npz"))
    (driven,) = evaluate([straight(ROBOT)], suite, 2, 0, processes=1)
    assert [e.outcome for e in driven] == ["success", "collision"]
    assert driven[0].poses[0].tolist() == list(barn.START)
    assert driven[0].shortest == pytest.approx(10.0)
    # 9 m to the goal's radius at 2 m/s: the robot is as fast as the metric rewards.
    assert 4.5 <= driven[0].seconds < 5.5
    assert barn.scores(driven).tolist() == pytest.approx([0.5, 0.0])
    # At the wall's near side: 8 - 0.075 - 0.254 m.
    assert driven[1].poses[-1, 1] == pytest.approx(7.67, abs=0.02)


def test_more_episodes_than_worlds_are_refused(tmp_path: Path) -> None:
    suite = barn.load(_arrays(tmp_path / "worlds.npz"))
    with pytest.raises(InvalidInput, match=r"--episodes 3: .* has 2 worlds"):
        suite.batches(3)


_SDF = """<sdf version="1.6"><world name="default"><model name="c"><static>1</static>
<pose>-4.4 5 0.5 0 0 0</pose><link name="l"><collision name="c"><geometry>
<cylinder><radius>0.075</radius><length>1</length></cylinder></geometry></collision></link></model>
</world></sdf>"""


def test_a_folder_of_the_data_set_is_read_with_its_paths(tmp_path: Path) -> None:
    (tmp_path / "world_files").mkdir()
    (tmp_path / "path_files").mkdir()
    for number in (0, 10, 2):
        (tmp_path / "world_files" / f"world_{number}.world").write_text(_SDF)
    # Cell (15, 0) is at x = -4.575 + 15 * 0.15 = -2.325 and y = 5.075; (15, 30) at y = 9.575.
    np.save(tmp_path / "path_files" / "path_2.npy", np.array([(15, 0), (15, 30)]))
    suite = barn.load(tmp_path)
    assert [w.world.name for w in suite.worlds] == ["barn-0", "barn-2", "barn-10"]
    first, last = np.hypot(0.075, 2.075), np.hypot(0.075, 3.425)
    assert suite.worlds[1].path_length == pytest.approx(first + 4.5 + last)
    # Without a file, our own shortest path: straight on.
    assert suite.worlds[0].path_length == pytest.approx(10.0, abs=0.05)
    assert "for 1 worlds" in suite.reference


def test_what_is_no_set_of_worlds_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorldFileError, match="holds no files named world_0"):
        barn.load(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"no arrays")
    with pytest.raises(WorldFileError, match="not an array file of BARN worlds"):
        barn.load(tmp_path / "broken.npz")
    with pytest.raises(FileNotFoundError, match="no folder of BARN's worlds"):
        barn.load(tmp_path / "missing")


@pytest.mark.skipif(not (SHARED / "barn").is_dir(), reason="the BARN worlds of shared/data are not here")
def test_arrays_and_sdf_files_are_the_same_worlds() -> None:
    arrays = {w.world.name: w for w in barn.load(SHARED / "barn" / "barn_dev_worlds.npz").worlds}
    files = barn.load(SHARED / "gazebo_worlds").worlds
    assert len(arrays) == 250
    for one in files:
        other = arrays[one.world.name].world
        assert sorted(map(tuple, np.round(one.world.circles, 3))) == sorted(
            map(tuple, np.round(other.circles, 3))
        )
        # The reference paths go round by the data set's own start and grid; ours are the shortest.
        assert 10.0 <= one.path_length <= arrays[one.world.name].path_length
