"""Baselines: what is computed by hand, and that each trains, is saved, acts and exports."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from scanpilot import resources
from scanpilot.baselines import run
from scanpilot.baselines.a3c import ActorCritic, SharedRMSProp, advantages
from scanpilot.baselines.classical import DynamicWindow, _distance
from scanpilot.baselines.commands import train
from scanpilot.baselines.tasks import TaskSpec, Translation, make, robot_and_observation
from scanpilot.checkpoint import CheckpointError
from scanpilot.cli import main
from scanpilot.configuration import ConfigurationError
from scanpilot.observation import observation_for
from scanpilot.robot import load_robot
from scanpilot.types import Triplet

ROBOT = load_robot(resources.find("robot", "generic_diff"))
OBSERVATION = observation_for(ROBOT, beams=72, frames=1)


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5; the second step terminates, the fourth is truncated.
    column = [
        torch.tensor(v)[:, None] for v in ([1.0, 2.0, 0.0, 4.0], [1.0, 1.0, 2.0, 0.0], [2.0, 9.0, 4.0, 8.0])
    ]
    terminated = torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None]
    ended = torch.tensor([0.0, 1.0, 0.0, 1.0])[:, None]
    found = advantages(*column, terminated, ended, gamma=0.5, lam=0.5)
    # deltas: 1 + 1 - 1 = 1; 2 - 1 = 1 (no bootstrap); 0 + 2 - 2 = 0; 4 + 4 - 0 = 8 (bootstrap).
    # A4 = 8; A3 = 0 + 0.25 * 8 = 2; A2 = 1; A1 = 1 + 0.25 * 1.
    assert found[:, 0].tolist() == pytest.approx([1.25, 1.0, 2.0, 8.0])


def test_the_shared_optimiser_by_hand() -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(network.weight, 1.0)
    optimiser = SharedRMSProp(network, learning_rate=0.1)
    optimiser.step(network, [torch.tensor([[2.0]])])
    # square = 0.01 * 4; step 0.1 * 2 / sqrt(0.04 + 1e-5)
    assert network.weight.item() == pytest.approx(1.0 - 0.2 / np.sqrt(0.04001), abs=1e-6)
    assert optimiser.squares[0].is_shared()
    assert optimiser.squares[0].item() == pytest.approx(0.04)


def test_translation_keeps_to_executable_actions() -> None:
    translation = Translation(ROBOT, OBSERVATION, discrete=False)
    assert translation.action_space.shape == (2,)
    actions = translation.actions(np.array([[-1.0, -1.0], [0.0, 0.5], [3.0, 3.0]]))
    assert actions.tolist() == [[0.0, 0.0, -1.0], [0.5, 0.0, 0.5], [1.0, 0.0, 1.0]]
    discrete = Translation(ROBOT, OBSERVATION, discrete=True)
    assert discrete.actions(np.array([0, 14])).tolist() == [[0.0, 0.0, -1.0], [1.0, 0.0, 1.0]]
    omni = load_robot(resources.find("robot", "generic_omni"))
    assert Translation(omni, OBSERVATION, discrete=True).action_space.n == 17


def test_a_task_tells_the_last_observation_apart() -> None:
    task = make(TaskSpec(env="Pendulum-v1"), 2)
    task.reset(seed=3)
    for step in range(200):
        moved = task.step(np.zeros((2, 1), np.float32))
        assert moved.truncated.all() == (step == 199)
    assert not moved.terminated.any()
    assert not np.allclose(moved.last, moved.observations)
    task.close()


def test_bounded_actions_reach_the_whole_range() -> None:
    """Full torque, 2 Nm, the first change of speed is (15 sin + 3 u) dt by Gymnasium's source."""
    task = make(TaskSpec(env="Pendulum-v1"), 1)
    cos, sin, speed = task.reset(seed=0)[0]
    moved = task.step(np.ones((1, 1), np.float32))
    assert moved.last[0, 2] - speed == pytest.approx((15.0 * sin + 3.0 * 2.0) * 0.05, abs=1e-4)
    assert abs(cos) <= 1.0
    task.close()


SHORT = {"hidden": (16,), "learning_starts": 16, "batch": 16, "buffer": 500}


@pytest.mark.parametrize("algorithm", run.ALGORITHMS)
def test_each_algorithm_trains_on_scanpilot_is_read_back_and_acts(algorithm: str, tmp_path: Path) -> None:
    discrete = algorithm == "a2c-discrete"
    description = run.Description(
        algorithm=algorithm,
        task=TaskSpec(discrete=discrete, frames=1, beams=36),
        config=run.BaselineConfig(**SHORT, envs=8, rollout=4, workers=1),
        seed=1,
        steps=160,
    )
    train(description, tmp_path)
    known, weights, _ = run.read(tmp_path)
    assert known.steps >= 160
    assert all(torch.isfinite(value).all() for value in weights.values())
    baseline = run.load(tmp_path)
    _, observation = robot_and_observation(description.task)
    assert baseline.observation == observation
    triplet = Triplet(
        np.full((3, 1, 36), 4.0, np.float32), np.float32([[3, 1, 0]] * 3), np.zeros((3, 3), np.float32)
    )
    actions = baseline.act(triplet)
    assert actions.shape == (3, 3)
    assert (actions[:, 0] >= 0.0).all()
    assert (np.abs(actions) <= 1.0).all()
    # Sums over a batch of another size may round otherwise.
    assert np.allclose(baseline.act(triplet[0]), actions[0], atol=1e-6)
    assert np.array_equal(pickle.loads(pickle.dumps(baseline)).act(triplet), actions)
    files = run.export(tmp_path, tmp_path / "networks")
    stored = [torch.load(file, weights_only=True) for file in files]
    named = {f"{file.stem}.{key}" for file, part in zip(files, stored, strict=True) for key in part}
    # All but what belongs to no network of its own, as the deviation of a normal distribution.
    assert {name for name in weights if "." in name} == named


@pytest.mark.parametrize("algorithm", ["sac", "a2c", "a3c"])
def test_each_kind_trains_on_any_gymnasium_id(algorithm: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    few = (
        ("--learning-starts", "16", "--batch", "16")
        if algorithm == "sac"
        else ("--envs", "2", "--rollout", "4")
    )
    command = ["baseline", "train", "--algo", algorithm, "--env", "Pendulum-v1", "--steps", "840"]
    assert main([*command, "--hidden", "16", *few, "--out", str(out)]) == 0
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1])["return"] < 0.0
    result = tmp_path / "result.json"
    assert main(["baseline", "eval", str(out), "--episodes", "2", "--json", str(result)]) == 0
    told = json.loads(result.read_text())
    assert told["env"] == "Pendulum-v1"
    assert told["return"] < 0.0
    assert told["random_return"] < 0.0
    with pytest.raises(CheckpointError, match="was trained on Pendulum-v1"):
        run.load(out)


def test_the_same_seed_trains_the_same_baseline(tmp_path: Path) -> None:
    description = run.Description(
        "sac", TaskSpec(frames=1, beams=36), run.BaselineConfig(**SHORT, envs=8), seed=4, steps=80
    )
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        train(description, tmp_path / name)
        found.append(run.read(tmp_path / name)[1])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_wrong_requests_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> str:
        assert main(["baseline", "train", "--steps", "10", "--out", str(tmp_path / "x"), *arguments]) == 1
        return capsys.readouterr().err

    assert "has discrete actions" in told("--algo", "sac", "--env", "CartPole-v1")
    assert "has continuous actions" in told("--algo", "a2c-discrete", "--env", "Pendulum-v1")
    assert "--env Nothing-v0" in told("--algo", "ppo", "--env", "Nothing-v0")
    assert "envs is 0" in told("--algo", "ppo", "--envs", "0")


def test_a_broken_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"baseline\.json: not the description"):
        run.load(tmp_path)


def test_images_pass_convolutions() -> None:
    from gymnasium import spaces

    networks = ActorCritic(spaces.Box(0, 255, (4, 80, 80), np.uint8), spaces.Discrete(6), (16,))
    chosen = networks.choose(np.zeros((2, 4, 80, 80), np.uint8))
    assert chosen.shape == (2,)
    assert ((chosen >= 0) & (chosen < 6)).all()


def test_pong_is_small_and_stacked() -> None:
    pytest.importorskip("ale_py")
    task = make(TaskSpec(env="ALE/Pong-v5"), 1)
    assert task.observation_space.shape == (4, 80, 80)
    observations = task.reset(seed=0)
    for _ in range(20):
        moved = task.step(np.array([0]))
    assert moved.observations.dtype == np.uint8
    assert not np.array_equal(observations, moved.observations)
    task.close()


# --- the dynamic window -----------------------------------------------------------------------------------


def test_distance_to_a_footprint_by_hand() -> None:
    square = np.array([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
    assert _distance(3.0, 0.0, square, 0.0) == pytest.approx(2.0)
    assert _distance(4.0, 5.0, square, 0.0) == pytest.approx(5.0)
    assert _distance(0.75, 0.0, square, 0.0) == pytest.approx(-0.25)
    assert _distance(3.0, 4.0, np.zeros((0, 2)), 0.5) == pytest.approx(4.5)


def _triplet(scan: np.ndarray, goal: tuple[float, float], speed: float = 0.0) -> Triplet:
    return Triplet(scan[None].astype(np.float32), np.float32([*goal, 0.0]), np.float32([speed, 0.0, 0.0]))


FREE = np.full(72, 20.0)


def test_the_window_drives_at_a_free_goal_and_turns_to_one_aside() -> None:
    window = DynamicWindow(ROBOT, OBSERVATION)
    ahead = window.act(_triplet(FREE, (4.0, 0.0), speed=0.8))
    assert ahead[0] == pytest.approx(1.0)
    assert abs(ahead[2]) < 0.1
    assert window.act(_triplet(FREE, (0.5, 3.0)))[2] > 0.2
    assert window.act(_triplet(FREE, (0.5, -3.0)))[2] < -0.2


def test_the_window_stops_before_a_wall_and_keeps_to_the_accelerations() -> None:
    window = DynamicWindow(ROBOT, OBSERVATION)
    angles = OBSERVATION.angles
    # A wall 0.45 m ahead, 0.25 m from the footprint, too near for full speed and its brakes.
    ahead = np.where(np.abs(angles) < 1.2, 0.45 / np.cos(np.clip(angles, -1.2, 1.2)), 20.0)
    reachable = ROBOT.limits.ax * ROBOT.control_period
    action = window.act(_triplet(ahead, (5.0, 0.0), speed=0.5))
    assert action[0] * ROBOT.limits.vx <= 0.5
    assert action[0] * ROBOT.limits.vx >= 0.5 - reachable - 1e-6
    assert window.act(_triplet(FREE, (5.0, 0.0)))[0] * ROBOT.limits.vx <= reachable + 1e-6


def test_the_window_goes_round_a_pillar() -> None:
    angles = OBSERVATION.angles
    pillar = np.where(np.abs(angles - 0.05) < 0.2, 1.2, 20.0)
    action = DynamicWindow(ROBOT, OBSERVATION).act(_triplet(pillar, (4.0, 0.0), speed=0.6))
    assert action[0] > 0.2
    assert action[2] < 0.0


def test_evaluating_names_what_it_does_not_know() -> None:
    from scanpilot.evaluating import find_contenders, find_suite

    with pytest.raises(FileNotFoundError, match="classical controllers: straight, dwa"):
        find_contenders(["dwaa"])
    with pytest.raises(ConfigurationError, match="comes twice"):
        find_contenders(["dwa", "dwa"])
    with pytest.raises(ConfigurationError, match="--worlds says where"):
        find_suite("barn")
    with pytest.raises(ConfigurationError, match="expected one of crowd"):
        find_suite("crowds")
    straight, window = find_contenders(["straight", "dwa"], "generic_omni")
    assert straight.robot.name == window.robot.name == "generic_omni"
