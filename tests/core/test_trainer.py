"""A whole small training run: reproducible, resumable, publishing what it says it publishes."""

import dataclasses
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanpilot import checkpoint, configuration, resources, training
from scanpilot.configuration import ConfigurationError
from scanpilot.failures import Failure
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.observation import ObservationSpec
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sac_ae_caps import AgentConfig, SacAeCaps
from scanpilot.sim.simulator import SimulatorConfig
from scanpilot.sim.walkers import WalkerConfig
from scanpilot.trainer import Budget, TrainConfig, Trainer
from scanpilot.types import StepResult, Triplet

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

    def collect_until_killed(self: training.Trainer, meanwhile: Callable[[], None]) -> None:
        if self.steps == 606:
            self.save()
            raise Killed
        collect(self, meanwhile)

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


def test_resuming_with_another_configuration_names_what_differs(uninterrupted: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"another agent: .*\"gamma\": 0\.99.*now.*0\.9"):
        _train(uninterrupted, 1300, "agent.gamma=0.9", resume=True)


def test_a_budget_is_minutes_or_steps() -> None:
    assert Budget(minutes=2.0).fraction(30.0, 0) == 0.25
    assert Budget(steps=1000).fraction(0.0, 250) == 0.25
    assert Budget(steps=1000).fraction(0.0, 5000) == 1.0
    for wrong in ({}, {"minutes": 1.0, "steps": 1}, {"minutes": 0.0}):
        with pytest.raises(ValueError, match=r"budget|either"):
            Budget(**wrong)


# The trainer's own decisions, with a fleet and a learner of straw.

SPEC = ObservationSpec(beams=36, frames=2)
NETWORK = NetworkConfig(filters=4, feature=8, actor_hidden=(8,), critic_hidden=(8,))
ROBOT = RobotSpec("straw", "differential", Footprint(radius=0.2), Limits(vx=1.0, wz=1.0), Lidar(beams=36))


class StrawFleet:
    """Two robots that go nowhere; what ends their episodes is told to them."""

    num_robots, robot, observation = 2, ROBOT, SPEC

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []
        self.ends: dict[str, list[bool]] = {}

    def observe(self) -> Triplet:
        return Triplet(
            np.ones((2, 2, 36), np.float32), np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
        )

    def step(self, actions: np.ndarray) -> StepResult:
        self.actions.append(actions)
        end = {
            name: np.array(self.ends.get(name, [False, False]))
            for name in ("reached", "collided", "truncated", "timed_out")
        }
        return StepResult(
            self.observe(),
            actions,
            np.zeros(2, np.float32),
            end["reached"] | end["collided"],
            end["truncated"],
            end["reached"],
            end["collided"],
            {"timed_out": end["timed_out"]},
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Notes:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.numbers: list[dict[str, float]] = []
        self.validations: list[dict[str, Any]] = []
        self.pictures: list[list[str]] = []
        self.failures: list[str] = []

    def due(self) -> bool:
        return True

    def progress(
        self, fraction: float, seconds: float, steps: int, updates: int, numbers: dict[str, float]
    ) -> None:
        self.numbers.append(numbers)

    def validation(
        self, seconds: float, steps: int, updates: int, summary: dict[str, Any], pictures: dict[str, Any]
    ) -> None:
        self.validations.append(summary)
        self.pictures.append(sorted(pictures))

    def failure(self, seconds: float, steps: int, updates: int, failure: Failure) -> None:
        self.failures.append(failure.name)


def summary_of(success: float) -> dict[str, Any]:
    return {"success": success, "success_interval": [success - 0.15, success + 0.15]}


def straw(
    run: Path, successes: Sequence[float] = (0.5,), until: float | None = None, **config: Any
) -> tuple[Trainer, StrawFleet, Notes]:
    settings = TrainConfig(
        agent=AgentConfig(network=NETWORK, batch_size=4),
        replay_capacity=64,
        **{
            "warmup_steps": 10,
            "updates_per_step": 1,
            "validations": len(successes),
            "validate_from": 0.0,
            **config,
        },
    )
    fleet, notes, results = StrawFleet(), Notes(), iter(successes)
    trainer = Trainer(
        fleet=fleet,
        agent=SacAeCaps(SPEC, np.array([True, False, True]), settings.agent, 0),
        replay=ReplayBuffer(64, SPEC.scan_shape, 0),
        manifest=PolicyManifest("straw", ROBOT, SPEC, NETWORK, 0.2),
        config=settings,
        budget=Budget(steps=40, until_success=until),
        run=run,
        validate=lambda act: summary_of(next(results)),
        log=notes,  # type: ignore[arg-type]
        seed=0,
    )
    return trainer, fleet, notes


def test_the_warm_up_draws_actions_evenly_and_learns_nothing(tmp_path: Path) -> None:
    trainer, fleet, notes = straw(tmp_path, warmup_steps=40)
    trainer.train()
    drawn = np.concatenate(fleet.actions)
    assert len(drawn) == 40
    assert drawn.min(0).tolist() == pytest.approx([0.0, -1.0, -1.0], abs=0.25)
    assert drawn.max(0).tolist() == pytest.approx([1.0, 1.0, 1.0], abs=0.25)
    assert (drawn[:, 0] >= 0.0).all()
    # The last step ends the warm-up, and the first update belongs to it.
    assert all("losses/critic" not in numbers for numbers in notes.numbers[:-1])


def test_the_later_policy_is_published_unless_it_is_worse_beyond_the_interval(tmp_path: Path) -> None:
    # At fractions 0, 1/4, 1/2, 3/4 and 1 of 40 steps. Intervals reach 0.15 to either side: 0.5 is within
    # that of 0.6 and later; neither 0.1 nor 0.3 is within that of 0.5.
    trainer, _, notes = straw(tmp_path, successes=(0.2, 0.6, 0.5, 0.1, 0.3))
    assert trainer.train() == summary_of(0.5)
    assert [v["success"] for v in notes.validations] == [0.2, 0.6, 0.5, 0.1, 0.3]
    manifest = checkpoint.load_policy(tmp_path).manifest
    assert manifest.training["steps"] == 20
    assert manifest.evaluation["validation"]["success"] == 0.5


def test_the_last_policy_is_kept_beside_the_best(tmp_path: Path) -> None:
    trainer, _, _ = straw(tmp_path, successes=(0.9, 0.8, 0.1))
    trainer.train()
    steps = {
        name: checkpoint.load_policy(tmp_path / name).manifest.training["steps"]
        for name in ("policy", "last")
    }
    assert steps == {"policy": 20, "last": 40}


def test_training_ends_early_at_the_success_asked_for_and_stays_ended(tmp_path: Path) -> None:
    trainer, _, notes = straw(tmp_path, successes=(0.2, 0.6, 0.95, 0.9, 0.9), until=0.9)
    assert trainer.train() == summary_of(0.95)
    assert trainer.steps == 20
    assert [v["success"] for v in notes.validations] == [0.2, 0.6, 0.95]
    again, _, notes = straw(tmp_path, successes=(0.5,) * 5, until=0.9)
    again.restore()
    assert again.train() == summary_of(0.95)
    assert (again.steps, notes.validations) == (20, [])


@pytest.mark.parametrize("bad", [0.0, 1.5, -1.0])
def test_a_success_that_cannot_be_asked_for_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="until_success"):
        Budget(steps=1, until_success=bad)


def test_robots_that_stand_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, fleet, notes = straw(tmp_path, warmup_steps=0)
    fleet.ends = {"truncated": [True, True], "timed_out": [True, True]}
    still = np.zeros((2, 3), np.float32)
    monkeypatch.setattr(trainer._agent, "explore", lambda triplets: still)
    for _ in range(40):
        trainer._collect(meanwhile=trainer._learn)
        trainer._report(0.5)
    assert notes.failures == ["standing"]
    assert notes.numbers[-1]["charts/forward"] == 0.0
    assert notes.numbers[-1]["charts/action_change"] == 0.0


def test_how_robots_move_is_told_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _, notes = straw(tmp_path, warmup_steps=0)
    # Forward 0.5, then 1; turns of 0.2 either way, then of 0.4: what moves sideways does not count.
    rows = iter(([[0.5, 0, 0.2], [0.5, 0, -0.2]], [[1.0, 0, 0.4], [1.0, 0, -0.4]]))
    monkeypatch.setattr(trainer._agent, "explore", lambda triplets: np.array(next(rows), np.float32))
    trainer._collect(meanwhile=trainer._learn)
    trainer._collect(meanwhile=trainer._learn)
    trainer._report(0.5)
    numbers = notes.numbers[-1]
    assert numbers["charts/forward"] == pytest.approx(0.75)
    assert numbers["charts/turn"] == pytest.approx(0.3)
    # Nothing before the first; then 0.5 and 0.2.
    assert numbers["charts/action_change"] == pytest.approx((0.0 + 0.35) / 2)


def test_numbers_that_are_not_finite_reach_neither_weights_nor_checkpoints_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, fleet, notes = straw(tmp_path, successes=(0.5, 0.5), warmup_steps=10, updates_per_step=2)
    step, observe, calls = fleet.step, fleet.observe, []

    def spoilt_step(actions: np.ndarray) -> StepResult:
        assert np.isfinite(actions).all()
        calls.append(actions)
        result = step(actions)
        if len(calls) == 8:
            result.rewards[0] = math.nan
        return result

    def spoilt_observe() -> Triplet:
        seen = observe()
        if len(calls) == 10:
            seen.scan[1, -1, 3] = math.nan
        return seen

    monkeypatch.setattr(fleet, "step", spoilt_step)
    monkeypatch.setattr(fleet, "observe", spoilt_observe)
    # One gradient of all that the critics get.
    gradients = []

    def spoilt_gradient(gradient: torch.Tensor) -> torch.Tensor:
        gradients.append(gradient)
        return gradient * math.nan if len(gradients) == 5 else gradient

    trainer._agent.critics.biases[-1].register_hook(spoilt_gradient)
    trainer.train()
    assert len(gradients) > 5
    # The robot that saw it stood still meanwhile.
    assert calls[10][1].tolist() == [0.0, 0.0, 0.0]
    numbers = notes.numbers[-1]
    # The reward's; the one that led to the scan, and the one that began with it.
    assert numbers["charts/rejected_transitions"] == 3
    assert numbers["charts/skipped_updates"] == 1
    state = checkpoint.read_state(tmp_path / "training")
    for arrays in (state["agent"]["modules"].values(), [state["replay"]["arrays"]]):
        assert all(bool(torch.isfinite(v).all()) for tensors in arrays for v in tensors.values())
    # Loading checks every weight.
    checkpoint.load_policy(tmp_path)


def test_a_run_can_be_resumed_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _, _ = straw(tmp_path)

    def killed(fraction: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer._agent, "set_progress", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    again, _, _ = straw(tmp_path, successes=(0.5,))
    again.restore()
    again.train()
    assert again.steps == 40


def test_a_world_that_gives_way_is_no_time_out_in_the_live_numbers(tmp_path: Path) -> None:
    trainer, fleet, notes = straw(tmp_path)
    fleet.ends = {"reached": [True, False], "truncated": [False, True]}
    trainer.train()
    # Robot 0 arrives in every episode that ended of itself; robot 1 was interrupted.
    assert notes.numbers[-1]["charts/success"] == 1.0
    assert notes.numbers[-1]["charts/timeout"] == 0.0
    fleet.ends = {"truncated": [True, True], "timed_out": [True, True]}
    trainer._collect(meanwhile=trainer._learn)
    trainer._report(1.0)
    assert notes.numbers[-1]["charts/timeout"] > 0.0


@pytest.mark.parametrize("at", ["publication", "save"])
def test_a_full_disk_in_the_middle_does_not_end_the_training(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _, notes = straw(tmp_path, successes=(0.9, 0.4), save_seconds=-1.0 if at == "save" else 1e9)
    failed = []
    name = "publish" if at == "publication" else "write_state"
    original = getattr(checkpoint, name)

    def once(*args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError(28, "No space left on device")
        return original(*args)

    monkeypatch.setattr(checkpoint, name, once)
    best = trainer.train()
    assert "No space left" in caplog.text
    assert trainer.steps == 40
    assert len(notes.validations) == 2
    # What could not be published is not the best that there is.
    assert best == summary_of(0.4 if at == "publication" else 0.9)
    assert checkpoint.load_policy(tmp_path).manifest.evaluation["validation"] == best
    assert checkpoint.read_state(tmp_path / "training")["steps"] == 40


def test_a_run_that_cannot_publish_at_all_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _, _ = straw(tmp_path)

    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    # The training itself is not lost.
    assert checkpoint.read_state(tmp_path / "training")["steps"] == 40


@pytest.mark.parametrize(
    "bad", [{"replay_capacity": 3}, {"validate_from": 1.0}, {"updates_per_step": 0}, {"validations": 0}]
)
def test_impossible_runs_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        TrainConfig(agent=AgentConfig(network=NETWORK, batch_size=4), **bad)


def test_an_omnidirectional_robot_trains_in_a_stage_world(tmp_path: Path) -> None:
    training.train(
        robot=resources.find("robot", "generic_omni"),
        config=resources.root() / "config" / "train.yaml",
        out=tmp_path / "run",
        seed=0,
        steps=120,
        overrides=(*SMALL, f"world={resources.find('world', 'demo')}"),
    )
    policy = checkpoint.load_policy(tmp_path / "run")
    k, n = policy.observation.scan_shape
    ahead = Triplet(
        np.full((k, n), 3.0, np.float32), np.array([1.0, 1.0, 0.0], np.float32), np.zeros(3, np.float32)
    )
    # Unlike a differential robot's, its lateral action is one the network chose.
    assert policy.act(ahead)[1] != 0.0


def test_the_shipped_configuration_states_every_key_and_agrees_with_the_code() -> None:
    path = resources.root() / "config" / "train.yaml"
    assert configuration.load(TrainConfig, path) == TrainConfig()
    stated = set(re.findall(r"^\s*(\w+):", path.read_text(), flags=re.MULTILINE))
    known = {name for name in _keys(configuration.to_dict(TrainConfig())) if name not in PER_MACHINE}
    assert known - stated == SIMULATOR_KEYS


# Said on the command line of one machine, and the simulator's departures from the ideal, off by default.
PER_MACHINE = {"threads"}
SIMULATOR_KEYS = {
    "simulator",
    "walkers",
    *(f.name for config in (SimulatorConfig, WalkerConfig) for f in dataclasses.fields(config)),
} - PER_MACHINE


def _keys(tree: dict[str, object]) -> Iterator[str]:
    for name, value in tree.items():
        yield name
        if isinstance(value, dict):
            yield from _keys(value)


def test_a_robot_that_is_not_symmetric_is_trained_without_the_mirror(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = resources.find("robot", "generic_diff").read_text()
    robot = tmp_path / "lopsided.yaml"
    robot.write_text(text.replace("  beams: 360", "  beams: 360\n  y: 0.1"))
    with caplog.at_level(logging.WARNING):
        training.train(
            robot=robot,
            config=resources.root() / "config" / "train.yaml",
            out=tmp_path / "run",
            seed=0,
            steps=60,
            overrides=SMALL,
        )
    assert "training without agent.mirror" in caplog.text
    assert not checkpoint.load_policy(tmp_path / "run").manifest.training["config"]["agent"]["mirror"]
