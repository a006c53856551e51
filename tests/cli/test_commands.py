"""The `scanpilot` command as a user meets it: real processes, exit codes, messages, files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scanpilot import checkpoint, resources

SMALL = [
    *("--set", "fleet.worlds=1"),
    *("--set", "fleet.robots_per_world=4"),
    *("--set", "warmup_steps=40"),
    *("--set", "agent.batch_size=16"),
    *("--set", "validation_episodes=2"),
    *("--set", "validations=1"),
    *("--set", "task.time_limit=20"),
    *("--set", "threads=1"),
]


def _scanpilot(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scanpilot.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    done = _scanpilot("train", "--robot", "generic_diff", "--steps", 200, "--seed", 1, "--out", out, *SMALL)
    assert done.returncode == 0, done.stderr
    return out


def test_train_writes_what_the_design_promises(run: Path) -> None:
    assert (run / "policy" / "policy.json").is_file()
    assert (run / "training" / "state.json").is_file()
    assert [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert list((run / "tensorboard").glob("events*"))


def test_eval_prints_a_table_and_writes_json_and_a_picture(run: Path, tmp_path: Path) -> None:
    result, picture = tmp_path / "result.json", tmp_path / "picture.png"
    done = _scanpilot(
        *("eval", run, "--suite", "crowd", "--episodes", 5, "--seed", 3),
        *("--json", result, "--picture", picture),
    )
    assert done.returncode == 0, done.stderr
    assert "success" in done.stdout
    data = json.loads(result.read_text())
    promised = (
        "success collision timeout success_interval time path_efficiency min_clearance smoothness guard_rate"
    )
    assert set(promised.split()) <= data.keys()
    assert data["episodes"] == 5
    assert data["success"] + data["collision"] + data["timeout"] == pytest.approx(1.0)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_release_writes_a_policy_with_a_card(run: Path, tmp_path: Path) -> None:
    done = _scanpilot("release", run, tmp_path / "released", "--episodes", 4)
    assert done.returncode == 0, done.stderr
    policy = checkpoint.load_policy(tmp_path / "released")
    assert policy.name == "released"
    assert policy.manifest.evaluation["crowd"]["episodes"] == 4
    card = (tmp_path / "released" / "README.md").read_text()
    assert "scanpilot eval released --suite crowd --episodes 4 --seed 0" in card
    assert "train --robot generic_diff --steps 200 --seed 1" in card


def test_bench_inference_reports_the_promised_keys(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = _scanpilot("bench", "inference", "--policy", run, "--seconds", 0.2, "--json", out)
    assert done.returncode == 0, done.stderr
    assert {"act_p50_ms", "act_p99_ms", "tick_p50_ms", "tick_p99_ms"} <= json.loads(out.read_text())[
        "torch"
    ].keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "no_such_policy"], "no_such_policy"),
        (["eval", "generic_diff", "--suite", "nowhere"], "expected one of crowd, clutter"),
        (["train", "--robot", "generic_dif", "--steps", 10, "--out", "x"], "did you mean generic_diff?"),
        (
            ["train", "--steps", 10, "--out", "x", "--set", "agent.gama=0.9"],
            "the nearest known key is 'gamma'",
        ),
        (["train", "--steps", 10, "--out", "x", "--set", "world=cluter"], "'clutter:7'"),
        (["train", "--steps", 10, "--out", "x", "--resume"], "state.json"),
    ],
)
def test_mistakes_are_named_without_a_traceback(
    arguments: list[object], message: str, tmp_path: Path
) -> None:
    done = _scanpilot(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_in_a_robot_file_is_named_with_file_and_line(tmp_path: Path) -> None:
    text = resources.find("robot", "generic_diff").read_text().replace("control_period", "controll_period")
    robot = tmp_path / "mine.yaml"
    robot.write_text(text)
    line = 1 + text[: text.index("controll_period")].count("\n")
    done = _scanpilot("train", "--robot", robot, "--steps", 10, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert (
        f"{robot}:{line}: unknown key 'controll_period', the nearest known key is 'control_period'"
        in done.stderr
    )


def test_importing_scanpilot_pulls_in_no_heavy_or_foreign_package() -> None:
    code = "import sys, scanpilot; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"rclpy", "stable_baselines3", "matplotlib", "torch"}


@pytest.mark.parametrize("command", ["sim", "doctor"])
def test_what_others_do_is_passed_on_to_them_options_first(command: str) -> None:
    pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")
    done = _scanpilot(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: scanpilot {command}" in done.stdout
    wrong = _scanpilot(command, "--no-such-option", "3")
    assert wrong.returncode == 2
    assert "unrecognized arguments: --no-such-option 3" in wrong.stderr


def test_unknown_options_are_refused() -> None:
    done = _scanpilot("eval", "generic_diff", "--no-such-option", "3")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-option 3" in done.stderr
