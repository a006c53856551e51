"""Bags of other people in place, bags written here in every format, whole, cut off and damaged."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed")

from rosbags.rosbag2 import CompressionMode

from scanpilot import cli, messages
from scanpilot.bags import BagError
from scanpilot.bags.convert import Choices, convert
from scanpilot.bags.files import Bag
from scanpilot.bags.info import Description, check_twist, describe, fresh_spans, overlap
from scanpilot.bags.stream import StreamConfig, events, find_roles
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.replay_file import ReplayFile
from scanpilot.resources import root
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.task import TaskConfig
from scanpilot.transitions import Commanded, Episode, GoalSet, TransitionConfig, TransitionMaker
from scanpilot.types import Odometry, Pose2D
from tests.core import recorded_run

TASK = TaskConfig()


def data_folder() -> Path | None:
    stated = os.environ.get("SCANPILOT_DATA")
    candidates = [Path(stated)] if stated else [root().parent / "shared" / "data"]
    return next((c for c in candidates if (c / "bags").is_dir()), None)


@pytest.fixture(scope="module")
def bags() -> Path:
    folder = data_folder()
    if folder is None:
        pytest.skip("no test data: neither SCANPILOT_DATA nor ../shared/data holds bags/")
    return folder / "bags"


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return load_robot(root() / "config" / "robots" / "generic_diff.yaml")


@pytest.fixture(scope="module")
def spec(robot: RobotSpec) -> ObservationSpec:
    return observation_for(robot, beams=60)


@pytest.fixture(scope="module")
def run(robot: RobotSpec) -> list[recorded_run.Recorded]:
    return recorded_run.drive(robot, seconds=8.0)


def described(path: Path, **chosen: str) -> tuple[Description, str]:
    with Bag(path) as bag:
        description = describe(bag, find_roles(bag, chosen))  # type: ignore[arg-type]
    return description, "\n".join(description.problems)


# What others recorded


def test_turtlebot4_is_described(bags: Path) -> None:
    description, problems = described(bags / "turtlebot4_rplidar")
    document, scan = description.document, description.document["scan"]
    counts = {t["name"]: t["count"] for t in document["topics"]}
    assert (counts["/scan"], counts["/odom"], counts["/cmd_vel"]) == (357, 920, 192)
    assert (scan["beams"], scan["range_max"]) == (720, 12.0)
    assert document["rates"]["/scan"]["hz"] == pytest.approx(7.43, abs=0.1)
    assert document["rates"]["/odom"]["hz"] == pytest.approx(20.8, abs=0.5)
    assert scan["no_return"]["inf"] == pytest.approx(0.23, abs=0.005)
    assert scan["no_return"]["at_or_beyond_range_max"] == pytest.approx(0.01, abs=0.003)
    assert scan["largest"] > 12.0
    assert scan["mount"]["yaw"] == pytest.approx(math.pi / 2, abs=1e-3)
    assert "turned by 90 degrees" in problems
    assert "transforms move base_link and base_footprint" in problems
    assert document["odometry"]["twist_frame"] == "child"
    assert 44.0 < description.usable_seconds < 46.3


def test_neato_has_two_mounts_and_a_late_scan(bags: Path) -> None:
    for name in ("neato_drive_square", "neato_teleop"):
        description, problems = described(bags / name)
        scan = description.document["scan"]
        assert (scan["topic"], scan["beams"]) == ("/scan", 361)
        assert abs(abs(scan["mount"]["yaw"]) - math.pi) < 1e-3
        assert "2 conflicting static transforms base_link -> base_laser_link" in problems
        assert "/stable_scan: comes" in problems
        assert "the last of 361 beams repeats the first one's direction" in problems
        assert "/bump: might tell contacts" in problems
        assert 0.6 < scan["no_return"]["inf"] < 0.9
        assert "/stable_scan: stamps run backwards" in problems
    assert "the longest 1.18 s" in problems


def test_jitter_and_spikes_are_named(bags: Path) -> None:
    _, problems = described(bags / "neato_jittery_drive")
    assert "/odom: intervals from 1.2 to 775 ms" in problems
    assert "vx peaks at 1.20, 2.4 times any command" in problems


def test_simulated_time_is_told_from_the_recorders(bags: Path) -> None:
    description, problems = described(bags / "neato_simulated_star")
    assert "headers are simulated time" in problems
    assert description.document["clock"]["headers"] == "another"
    assert not description.stream.same_clock
    # Commands have no header: they are dated on the headers' clock.
    with Bag(bags / "neato_simulated_star") as bag:
        import collections

        found = list(events(bag, description.roles, description.stream, collections.Counter()))
    stamps = [e.stamp for e in found if isinstance(e, Odometry)]
    sent = [e.stamp for e in found if isinstance(e, Commanded)]
    assert min(stamps) - 0.2 < min(sent) <= max(sent) < max(stamps) + 0.5


def test_ros1_bags_are_described(bags: Path) -> None:
    description, problems = described(bags / "ros1_turtlebot3_drive_square")
    scan = description.document["scan"]
    assert (scan["beams"], scan["angle_min"]) == (360, 0.0)
    assert scan["angle_max"] == pytest.approx(6.2657, abs=1e-3)
    assert scan["no_return"]["zero"] > 0.8
    assert scan["largest"] == pytest.approx(65.472)
    assert 0.001 in scan["error_codes"]
    assert "no odometry" in problems
    assert description.usable_seconds == 0.0

    description, problems = described(bags / "ros1_hokuyo_two_lidars")
    scan = description.document["scan"]
    assert scan["beams"] == 726
    assert scan["no_return"]["nan"] == pytest.approx(0.22, abs=0.02)
    assert scan["no_return"]["error_code"] == pytest.approx(0.2, abs=0.02)
    assert "not symmetric" in problems
    assert "also there: /rear_scan" in problems
    assert described(bags / "ros1_hokuyo_two_lidars", scan="/rear_scan")[0].roles.scan == "/rear_scan"

    description, problems = described(bags / "ros1_neato_simulated_goal")
    assert description.document["odometry"]["twist_frame"] == "parent"
    assert description.stream.twist_in_parent_frame
    assert description.roles.goal == "/move_base_simple/goal"
    assert "velocity is in the odometry frame" in problems


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("mcap_zstd_file_mode", 693, "no scan"),
        ("rosbag2_format_cases/mcap_split_five_files", 6074, "no scan"),
        ("rosbag2_format_cases/sqlite3_split_five_files", 6074, "no scan"),
        ("rosbag2_format_cases/mcap_no_metadata", 3177, "metadata.yaml is missing: rebuilt"),
        ("rosbag2_format_cases/sqlite3_no_metadata", 3177, "metadata.yaml is missing: rebuilt"),
        ("rosbag2_format_cases/mcap_service_events", 10, "no scan"),
        ("rosbag2_format_cases/sqlite3_empty", 0, "no scan"),
        ("rosbag2_format_cases/sqlite3_wrong_rmw", 7, "serialised as 'wrong_format', only cdr"),
    ],
)
def test_format_cases_are_read(bags: Path, name: str, count: int, said: str) -> None:
    description, problems = described(bags / name)
    assert sum(t["count"] for t in description.document["topics"]) == count
    assert said in problems
    assert description.usable_seconds == 0.0


def test_an_old_ros1_version_is_refused(bags: Path) -> None:
    with pytest.raises(BagError, match=r"demo\.bag: is a ROS 1 bag of version 1\.2, only 2\.0"):
        Bag(bags / "ros1_version_1_2_unsupported")


@pytest.mark.parametrize(
    ("name", "least"),
    [("turtlebot4_rplidar", 190), ("neato_drive_square", 150), ("ros1_neato_simulated_goal", 80)],
)
def test_real_bags_become_transitions(
    bags: Path, name: str, least: int, tmp_path: Path, robot: RobotSpec, spec: ObservationSpec
) -> None:
    (tally,) = convert([bags / name], tmp_path / "a.replay", robot, spec, TASK)
    file = ReplayFile(tmp_path / "a.replay")
    assert len(file) == tally.transitions >= least
    (entry,) = file.header["bags"]
    assert entry["path"].endswith(name)
    assert len(entry["sha256"]) == 64
    assert entry["mount"]["source"] == "tf"
    (batch,) = file.batches()
    assert batch.before.is_finite()
    assert batch.result.triplets.is_finite()
    assert (np.abs(batch.result.actions) <= 1.0).all()
    # What was driven is what odometry says: actions and speeds go together.
    moved = batch.result.triplets.speed[:, 0]
    assert np.corrcoef(batch.result.actions[:, 0], moved)[0, 1] > 0.5


def test_what_cannot_be_learned_from_is_refused_with_the_reason(
    bags: Path, tmp_path: Path, robot: RobotSpec, spec: ObservationSpec
) -> None:
    for name, reason in (
        ("ros1_turtlebot3_drive_square", "no odometry"),
        ("ros1_hokuyo_two_lidars", "no odometry"),
        ("mcap_zstd_file_mode", "no scan"),
        ("rosbag2_format_cases/sqlite3_empty", "no scan"),
    ):
        with pytest.raises(BagError, match=reason):
            convert([bags / name], tmp_path / "a.replay", robot, spec, TASK)
    assert list(tmp_path.iterdir()) == []


# The same from every format as live


def live(run: list[recorded_run.Recorded], robot: RobotSpec, spec: ObservationSpec) -> list[Episode]:
    """What a node would have stored: events from the messages as they arrive."""
    maker = TransitionMaker(robot, spec, TASK, robot.lidar.mount, config=TransitionConfig(goals="both"))
    done: list[Episode] = []
    for recorded in run:
        message, now = recorded.message, recorded_run.EPOCH + 1e-9 * recorded.time
        if recorded.topic == "/scan":
            done += maker.add(messages.scan_from(message))
        elif recorded.topic == "/odom":
            done += maker.add(messages.odometry_from(message))
        elif recorded.topic == "/cmd_vel":
            stamp = messages.stamp_near(message, now)
            done += maker.add(Commanded(stamp, messages.twist_from(message)))
        elif recorded.topic == "/goal_pose":
            stamp = messages.stamp_near(message, now)
            done += maker.add(GoalSet(stamp, messages.pose_from(message.pose)))
    return done + maker.finish()


def assert_same(file: ReplayFile, episodes: list[Episode]) -> None:
    assert len(file) == sum(len(e) for e in episodes) > 30
    (batch,) = file.batches()
    for pick, ours in (
        (batch.before, [e.states for e in episodes]),
        (batch.result.triplets, [e.result.triplets for e in episodes]),
    ):
        half = np.concatenate([t.scan for t in ours]).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(pick.scan, half)
        np.testing.assert_array_equal(pick.goal, np.concatenate([t.goal for t in ours]))
        np.testing.assert_array_equal(pick.speed, np.concatenate([t.speed for t in ours]))
    for name in ("actions", "rewards", "terminated", "truncated", "collided"):
        lived = np.concatenate([getattr(e.result, name) for e in episodes])
        np.testing.assert_array_equal(getattr(batch.result, name), lived)


MODES = [
    ("sqlite3", CompressionMode.NONE),
    ("sqlite3", CompressionMode.MESSAGE),
    ("sqlite3", CompressionMode.FILE),
    ("mcap", CompressionMode.NONE),
    ("mcap", CompressionMode.MESSAGE),
    ("mcap", CompressionMode.FILE),
    ("mcap", CompressionMode.STORAGE),
]


@pytest.fixture(scope="module")
def lived(run: list[recorded_run.Recorded], robot: RobotSpec, spec: ObservationSpec) -> list[Episode]:
    return live(run, robot, spec)


BOTH = TransitionConfig(goals="both")


@pytest.mark.parametrize(("storage", "mode"), MODES)
def test_a_bag_gives_what_a_live_listener_stored(
    storage: str,
    mode: CompressionMode,
    run: list[recorded_run.Recorded],
    lived: list[Episode],
    robot: RobotSpec,
    spec: ObservationSpec,
    tmp_path: Path,
) -> None:
    path = recorded_run.write(tmp_path / "bag", run, storage, mode)
    convert([path], tmp_path / "a.replay", robot, spec, TASK, config=BOTH)
    assert_same(ReplayFile(tmp_path / "a.replay"), lived)


def test_a_ros1_bag_does_too(
    run: list[recorded_run.Recorded],
    lived: list[Episode],
    robot: RobotSpec,
    spec: ObservationSpec,
    tmp_path: Path,
) -> None:
    path = recorded_run.write_ros1(tmp_path / "a.bag", run)
    convert([path], tmp_path / "a.replay", robot, spec, TASK, config=BOTH)
    assert_same(ReplayFile(tmp_path / "a.replay"), lived)


# Damage


def damaged_ways(tmp_path: Path, run: list[recorded_run.Recorded]) -> dict[str, Path]:
    return {
        "sqlite3": next(recorded_run.write(tmp_path / "s", run, "sqlite3").glob("*.db3")),
        "mcap": next(recorded_run.write(tmp_path / "m", run, "mcap").glob("*.mcap")),
        "mcap_chunks": next(
            recorded_run.write(tmp_path / "c", run, "mcap", CompressionMode.STORAGE).glob("*.mcap")
        ),
        "file_zstd": next(
            recorded_run.write(tmp_path / "z", run, "mcap", CompressionMode.FILE).glob("*.zst*")
        ),
        "ros1": recorded_run.write_ros1(tmp_path / "a.bag", run),
    }


@pytest.mark.parametrize("kind", ["sqlite3", "mcap", "mcap_chunks", "file_zstd", "ros1"])
def test_of_a_cut_off_file_everything_before_the_cut_is_read(
    kind: str, run: list[recorded_run.Recorded], tmp_path: Path
) -> None:
    whole = damaged_ways(tmp_path, run)[kind]
    data = whole.read_bytes()
    path = tmp_path / f"cut{''.join(whole.suffixes[-2:])}"
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(data[: int(share * len(data))])
        with Bag(path) as bag:
            found = list(bag.messages())
            # The very end of a file holds no messages.
            assert bag.problems or len(found) == len(run), share
            assert len(found) <= len(run) - (share < 0.95)
            if share >= 0.5 and kind in ("sqlite3", "mcap", "ros1"):
                assert len(found) > (share - 0.1) * len(run), bag.problems
            elif share >= 0.9:
                # Compressed, a part of 128 KB that lacks its end is lost as a whole.
                assert len(found) > 0.3 * len(run), bag.problems
            for message in found[:50]:
                bag.decode(message)


@pytest.mark.parametrize("kind", ["sqlite3", "mcap", "mcap_chunks", "file_zstd", "ros1"])
def test_no_damage_makes_it_crash(
    kind: str,
    run: list[recorded_run.Recorded],
    robot: RobotSpec,
    spec: ObservationSpec,
    tmp_path: Path,
) -> None:
    whole = damaged_ways(tmp_path, run[:150])[kind]
    data = whole.read_bytes()
    path = tmp_path / f"hit{''.join(whole.suffixes[-2:])}"
    rng = np.random.default_rng(len(kind))
    for trial in range(int(os.environ.get("SCANPILOT_FUZZ", "4"))):
        broken = bytearray(data)
        for at in rng.integers(0, len(data), 2 ** int(rng.integers(0, 8))):
            broken[at] = int(rng.integers(256))
        if trial % 3 == 0:
            begin = int(rng.integers(len(data)))
            broken[begin : begin + 3000] = rng.bytes(3000)
        path.write_bytes(broken)
        try:
            described(path)
            convert([path], tmp_path / "a.replay", robot, spec, TASK)
        except BagError:
            # Refused in words; anything else is a crash.
            continue


def test_a_missing_split_and_damaged_metadata_are_named(
    run: list[recorded_run.Recorded], tmp_path: Path
) -> None:
    path = recorded_run.write(tmp_path / "bag", run)
    metadata = path / "metadata.yaml"
    text = metadata.read_text()
    metadata.write_text(text[: len(text) // 3] + "\n\t: [")
    with Bag(path) as bag:
        assert "metadata.yaml is damaged" in bag.problems[0]
        assert bag.topics["/scan"].count > 50
    metadata.write_text(text.replace("- bag.db3", "- bag.db3\n  - bag_1.db3"))
    with Bag(path) as bag:
        assert "files missing: bag_1.db3" in bag.problems
        assert bag.topics["/scan"].count > 50
    shutil.rmtree(path)
    with pytest.raises(BagError, match="no such bag"):
        Bag(path)
    path.mkdir()
    with pytest.raises(BagError, match=r"no \.db3"):
        Bag(path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BagError, match=r"notes\.txt: neither"):
        Bag(tmp_path / "notes.txt")


# Judging


def test_twist_frame_is_found_by_how_the_pose_changes() -> None:
    stamps = 0.05 * np.arange(200)
    # A circle of radius 1 m at 0.5 m/s.
    yaw = 0.5 * stamps
    rows = np.stack((stamps, np.sin(yaw), 1.0 - np.cos(yaw), yaw), axis=1)
    body = np.tile([0.5, 0.0, 0.5], (200, 1))
    world = np.stack((0.5 * np.cos(yaw), 0.5 * np.sin(yaw), np.full(200, 0.5)), axis=1)
    child, parent = check_twist(np.hstack((rows, body))), check_twist(np.hstack((rows, world)))
    assert (child.frame, parent.frame) == ("child", "parent")
    assert child.child_error < 0.001 < 0.3 < child.parent_error
    # Straight along the frame's axis both are the same.
    straight = np.zeros((200, 7))
    straight[:, 0], straight[:, 1], straight[:, 4] = stamps, 0.5 * stamps, 0.5
    assert check_twist(straight).frame == "unclear"


def test_usable_time_is_where_both_are_fresh() -> None:
    scans = fresh_spans(np.array([0.0, 0.2, 0.4, 2.0, 2.2]), 0.35)
    np.testing.assert_allclose(scans, [[0.0, 0.4], [2.0, 2.2]])
    assert overlap(scans, np.array([[0.1, 2.1]])) == pytest.approx(0.3 + 0.1)
    assert overlap(scans, np.zeros((0, 2))) == 0.0


def test_goal_in_another_frame_is_placed_by_the_transforms(
    run: list[recorded_run.Recorded], robot: RobotSpec, tmp_path: Path
) -> None:
    # The map lies 1 m along odom's x, turned by a quarter.
    placed = recorded_run.static_transform("map", "odom", Pose2D(0.0, 1.0, -math.pi / 2))
    goal = recorded_run.goal_message(1.0, Pose2D(0.0, 0.0, 0.0), "map")
    unknown = recorded_run.goal_message(2.0, Pose2D(0.0, 0.0, 0.0), "moon")
    extra = [
        recorded_run.Recorded("/tf_static", 1, placed),
        recorded_run.Recorded("/goal_pose", 1_000_000_000, goal),
        recorded_run.Recorded("/goal_pose", 2_000_000_000, unknown),
    ]
    kept = [r for r in run if r.topic != "/goal_pose"]
    path = recorded_run.write(tmp_path / "bag", sorted([*kept, *extra], key=lambda r: r.time))
    import collections

    left_out: collections.Counter[str] = collections.Counter()
    with Bag(path) as bag:
        found = list(events(bag, find_roles(bag), StreamConfig(), left_out))
    (set_goal,) = [e for e in found if isinstance(e, GoalSet)]
    assert set_goal.pose == pytest.approx((1.0, 0.0, math.pi / 2), abs=1e-9)
    assert set_goal.stamp == pytest.approx(recorded_run.EPOCH + 1.0)
    assert ["'moon'" in reason for reason in left_out] == [True]


def test_what_the_user_says_overrides_the_guess(
    run: list[recorded_run.Recorded], robot: RobotSpec, spec: ObservationSpec, tmp_path: Path
) -> None:
    path = recorded_run.write(tmp_path / "bag", run)
    choices = Choices({"scan": "scan"}, Pose2D(0.1, 0.0, 1.0), twist_in_parent_frame=True)
    convert([path], tmp_path / "a.replay", robot, spec, TASK, choices)
    (entry,) = ReplayFile(tmp_path / "a.replay").header["bags"]
    assert entry["mount"] == {"x": 0.1, "y": 0.0, "yaw": 1.0, "flipped": False, "source": "told"}
    assert entry["stream"]["twist_in_parent_frame"]
    with pytest.raises(BagError, match="no topic /scam in"):
        convert([path], tmp_path / "a.replay", robot, spec, TASK, Choices({"scan": "/scam"}))
    with pytest.raises(BagError, match=r"/odom: is of nav_msgs/msg/Odometry, a scan topic is of"):
        convert([path], tmp_path / "a.replay", robot, spec, TASK, Choices({"scan": "/odom"}))


# Commands


def test_commands_from_recording_to_report(
    run: list[recorded_run.Recorded], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bag", "convert", "--record", "--robot", "generic_diff"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("ros2 bag record -s mcap")
    assert all(f" /{topic}" in line for topic in ("scan", "odom", "cmd_vel", "goal_pose", "tf_static"))

    path, out = recorded_run.write(tmp_path / "bag", run, "mcap"), tmp_path / "info.json"
    picture = tmp_path / "bag.png"
    assert cli.main(["bag", "info", str(path), "--json", str(out), "--picture", str(picture)]) == 0
    document = json.loads(out.read_text())
    assert {"topics", "scan", "rates", "usable_seconds", "problems"} <= document.keys()
    assert 7.0 < document["usable_seconds"] <= 8.0
    assert picture.read_bytes()[:4] == b"\x89PNG"

    replay = tmp_path / "a.replay"
    assert cli.main(["bag", "convert", str(path), "--out", str(replay), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["bags"][0]["transitions"] == len(ReplayFile(replay))

    page = tmp_path / "page.html"
    told = ["bag", "replay", str(path), "--policy", "generic_diff", "--html", str(page), "--json", str(out)]
    assert cli.main(told) == 0
    summary = json.loads(out.read_text())
    assert summary["ticks"] > 30
    assert summary["goals_set"] > 0.9
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "")
    _check_in_a_browser(page)

    capsys.readouterr()
    assert cli.main(["bag", "info", str(path), str(tmp_path / "none"), "--json", str(out)]) == 1
    assert "no such bag" in capsys.readouterr().err
    assert [b["usable_seconds"] > 0 for b in json.loads(out.read_text())["bags"]] == [True, False]


def _check_in_a_browser(page: Path) -> None:
    """Scripts run to their end: the line beside the scrubber is written last. Where there is a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"{page.as_uri()}#20"]
    done = subprocess.run([browser, *flags], capture_output=True, text=True, timeout=120, check=False)
    assert "4.0 s  recorded" in done.stdout, done.stderr[-2000:]


def test_bags_need_no_torch_to_convert() -> None:
    code = "import scanpilot.bags.convert, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
