"""A whole small training run: reproducible, resumable, publishing what it says it publishes."""

import json
from pathlib import Path

import numpy as np
import pytest

from scanpilot import checkpoint, resources, training
from scanpilot.configuration import ConfigurationError
from scanpilot.trainer import Budget

SMALL = (
    "fleet.worlds=2",
    "fleet.robots_per_world=3",
    "fleet.world_lifetime=40",
    "warmup_steps=60",
    "agent.batch_size=16",
    "agent.network.critic_hidden=[16, 16]",
    "agent.network.actor_hidden=[16, 16]",
    "replay_capacity=500",
    "updates_per_step=1",
    "validation_episodes=4",
    "validations=2",
    "validate_from=0.5",
    "task.time_limit=30",
    "threads=1",
)


def _train(out: Path, steps: int, *more: str, resume: bool = False) -> dict[str, object]:
    return training.train(
        robot=resources.find("robot", "generic_diff"),
        config=resources.root() / "config" / "train.yaml",
        out=out,
        seed=3,
        steps=steps,
        overrides=(*SMALL, *more),
        resume=resume,
    )


def _weights(run: Path) -> dict[str, np.ndarray]:
    state = checkpoint.read_state(run / "training")
    flat = {}
    for module, tensors in state["agent"]["modules"].items():
        flat.update({f"{module}/{name}": tensor.numpy() for name, tensor in tensors.items()})
    return flat


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted")
    _train(run / "run", 1200)
    return run / "run"


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(uninterrupted: Path, tmp_path: Path) -> None:
    _train(tmp_path / "run", 1200)
    first, second = _weights(uninterrupted), _weights(tmp_path / "run")
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_resumed_run_equals_an_uninterrupted_one(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    collect = training.Trainer._collect

    def collect_until_killed(self: training.Trainer) -> None:
        if self.steps == 606:
            self.save()
            raise Killed
        collect(self)

    monkeypatch.setattr(training.Trainer, "_collect", collect_until_killed)
    with pytest.raises(Killed):
        _train(tmp_path / "run", 1200)
    monkeypatch.undo()
    _train(tmp_path / "run", 1200, resume=True)

    first, second = _weights(uninterrupted), _weights(tmp_path / "run")
    assert all(np.array_equal(first[name], second[name]) for name in first)
    state = checkpoint.read_state(tmp_path / "run" / "training")
    assert state["steps"] == 1200
    assert state["replay"]["added"] == 1200


def test_a_run_publishes_its_best_validated_policy_with_its_provenance(uninterrupted: Path) -> None:
    policy = checkpoint.load_policy(uninterrupted)
    assert policy.manifest.training["seed"] == 3
    assert policy.manifest.training["steps"] <= 1200
    assert policy.manifest.evaluation["validation"]["episodes"] == 4
    kinds = [json.loads(line)["kind"] for line in (uninterrupted / "log.jsonl").read_text().splitlines()]
    assert kinds.count("validation") == 2


def test_a_run_is_not_overwritten_without_resume(uninterrupted: Path) -> None:
    with pytest.raises(ConfigurationError, match="--resume"):
        _train(uninterrupted, 1200)


def test_resuming_nothing_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"training/state\.json.*No such file"):
        _train(tmp_path / "run", 1200, resume=True)


def test_a_budget_is_minutes_or_steps() -> None:
    assert Budget(minutes=2.0).fraction(30.0, 0) == 0.25
    assert Budget(steps=1000).fraction(0.0, 250) == 0.25
    assert Budget(steps=1000).fraction(0.0, 5000) == 1.0
    for wrong in ({}, {"minutes": 1.0, "steps": 1}, {"minutes": 0.0}):
        with pytest.raises(ValueError, match=r"budget|either"):
            Budget(**wrong)
