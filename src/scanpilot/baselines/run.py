"""The directory of a baseline's run: what it is, its networks; loading, evaluating and exporting them.

``baseline.json`` says what was trained and how, ``networks.safetensors`` holds the weights and
``log.jsonl`` how it went. Loading executes no code from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scanpilot import configuration
from scanpilot.baselines.tasks import Array, Moved, Task, TaskSpec, Translation, make, robot_and_observation
from scanpilot.checkpoint import CheckpointError
from scanpilot.evaluation.metrics import bootstrap_interval
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.types import DoubleArray, FloatArray, Triplet

SCHEMA = 1
ALGORITHMS = ("sac", "td3", "ddpg", "a2c", "a2c-discrete", "ppo", "a3c")


@dataclass(frozen=True)
class BaselineConfig:
    """How a baseline learns; None is the library's default for the algorithm.

    Attributes:
        learning_rate: of all networks.
        gamma: discount of a step.
        gae_lambda: of generalised advantage estimation (A2C, PPO, A3C).
        entropy: weight of the policy's entropy (A2C, PPO, A3C); SAC's temperature learns by itself.
        hidden: units of each layer.
        envs: environments in step (A3C: of each worker).
        rollout: steps of each environment between two updates (A2C, PPO, A3C).
        batch: transitions of an update (SAC, TD3, DDPG, PPO).
        gradient_steps: updates after each step of all environments (SAC, TD3, DDPG).
        buffer: transitions kept (SAC, TD3, DDPG).
        learning_starts: steps of random actions (SAC, TD3, DDPG).
        reward_scale: factor on rewards for the learner; logs show them as they are.
        workers: processes (A3C).
        threads: of torch, in each process.
    """

    learning_rate: float | None = None
    gamma: float = 0.99
    gae_lambda: float | None = None
    entropy: float | None = None
    hidden: tuple[int, ...] = (256, 256)
    envs: int | None = None
    rollout: int | None = None
    batch: int | None = None
    gradient_steps: int | None = None
    buffer: int | None = None
    learning_starts: int | None = None
    reward_scale: float = 1.0
    workers: int = 2
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("envs", "rollout", "batch", "gradient_steps", "buffer", "workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        if not 0.0 <= self.gamma <= 1.0 or not self.reward_scale > 0.0 or not self.hidden:
            raise ValueError("gamma must be 0 to 1, reward_scale positive, hidden not empty")


@dataclass(frozen=True)
class Description:
    """What a run is; ``baseline.json``."""

    algorithm: str
    task: TaskSpec
    config: BaselineConfig
    seed: int
    steps: int
    seconds: float = 0.0
    command: str = ""


class Log:
    """Returns of finished episodes, as lines of JSON and to the terminal."""

    def __init__(self, directory: Path, count: int, every: float = 10.0) -> None:
        self._file = (directory / "log.jsonl").open("a", encoding="utf-8")
        self._every, self._started = every, time.monotonic()
        self._told = self._started
        self._returns = np.zeros(count)
        self._recent: list[tuple[float, bool]] = []
        self.steps = 0

    def add(self, moved: Moved) -> None:
        """Note one step of all environments."""
        self._returns += moved.rewards
        self.steps += len(self._returns)
        for index in np.flatnonzero(moved.terminated | moved.truncated):
            self.episode(float(self._returns[index]), bool(moved.succeeded[index]))
            self._returns[index] = 0.0
        self.tell()

    def episode(self, total: float, succeeded: bool) -> None:
        """Note one finished episode."""
        self._recent = [*self._recent[-99:], (total, succeeded)]

    def tell(self, last: bool = False) -> None:
        """Write a line if one is due."""
        now = time.monotonic()
        if not self._recent or (now - self._told < self._every and not last):
            return
        self._told = now
        line = {
            "steps": self.steps,
            "seconds": round(now - self._started, 2),
            "return": float(np.mean([total for total, _ in self._recent])),
            "success": float(np.mean([won for _, won in self._recent])),
            "episodes": len(self._recent),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        print(
            f"{line['steps']:>9,} steps {line['seconds']:>7.0f} s  mean return of the last "
            f"{line['episodes']} episodes {line['return']:.2f}, success {line['success']:.2f}",
            flush=True,
        )

    def close(self) -> float:
        """Write the last line; returns seconds since the beginning."""
        self.tell(last=True)
        self._file.close()
        return time.monotonic() - self._started


def write(directory: Path, description: Description, networks: nn.Module) -> None:
    """Write a finished run."""
    weights = {name: value.detach().contiguous().clone() for name, value in networks.state_dict().items()}
    save_file(weights, directory / "networks.safetensors")
    data = {"schema": SCHEMA, **configuration.to_dict(description)}
    (directory / "baseline.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> tuple[Description, dict[str, Tensor], str]:
    """What `write` wrote, and a hash that names the weights.

    Raises:
        CheckpointError: it is not a run, or a broken one.
    """
    path = directory / "baseline.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        description = Description(
            **{
                **data,
                "task": TaskSpec(**data["task"]),
                "config": BaselineConfig(**{**data["config"], "hidden": tuple(data["config"]["hidden"])}),
            }
        )
        if description.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {description.algorithm!r} is none of {', '.join(ALGORITHMS)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not the description of a baseline's run: {error}") from error
    file = directory / "networks.safetensors"
    try:
        weights = load_file(file)
        identity = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except Exception as error:  # safetensors raises its own, undeclared kinds
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{file}: {name} holds a number that is not finite")
    return description, weights, identity


def networks_of(description: Description, weights: Mapping[str, Tensor]) -> tuple[nn.Module, Choose]:
    """The networks of a run with their weights, and what they choose for ``(N, ...)`` observations.

    Raises:
        CheckpointError: the weights are those of other networks.
    """
    task = make(description.task, 1)
    seen, done = task.observation_space, task.action_space
    task.close()
    networks: nn.Module
    if description.algorithm == "a3c":
        from scanpilot.baselines.a3c import ActorCritic

        networks = own = ActorCritic(seen, done, description.config.hidden)
        choose: Choose = own.choose
    else:
        from scanpilot.baselines import sb3

        networks, choose = sb3.new_policy(description, seen, done)
    try:
        networks.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise CheckpointError(f"weights of other networks than {description.algorithm}'s: {error}") from error
    networks.eval().requires_grad_(False)
    return networks, choose


# ``(N, ...)`` observations to ``(N, ...)`` actions, the likeliest ones.
Choose = Callable[[Array], Array]


class Baseline:
    """A trained baseline that drives robots: a contender of `scanpilot.evaluation`."""

    def __init__(self, directory: Path) -> None:
        description, weights, self.identity = read(directory)
        if not description.task.is_scanpilot:
            raise CheckpointError(
                f"{directory}: was trained on {description.task.env}, which no suite is of; see scanpilot "
                "baseline eval"
            )
        self._directory = directory
        self.name = description.algorithm
        self._robot, self._observation = robot_and_observation(description.task)
        self._translation = Translation(self._robot, self._observation, description.task.discrete)
        self._networks, self._choose = networks_of(description, weights)

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes load it themselves."""
        return Baseline, (self._directory,)

    @property
    def robot(self) -> RobotSpec:
        """That it was trained for."""
        return self._robot

    @property
    def observation(self) -> ObservationSpec:
        """That it sees."""
        return self._observation

    def act(self, triplet: Triplet) -> FloatArray:
        """``(N, ...)`` triplets to ``(N, 3)`` actions, or one to ``(3,)``."""
        batch = triplet.batched()
        actions = self._translation.actions(self._choose(self._translation.vectors(batch)))
        return actions if triplet.scan.ndim == 3 else actions[0]


def load(directory: Path) -> Baseline:
    """A run's baseline as a contender.

    Raises:
        CheckpointError: it is not a run of one, or not on ScanPilot.
    """
    return Baseline(directory)


def returns(directory: Path, episodes: int, seed: int) -> dict[str, Any]:
    """Mean return of a run's policy on its own task, beside that of random actions.

    ``return_interval`` is a bootstrap over episodes.
    """
    description, weights, identity = read(directory)
    _, choose = networks_of(description, weights)
    rng = np.random.default_rng(seed)

    def at_random(observations: Array) -> Array:
        return np.stack([_draw(rng, task.action_space) for _ in range(len(observations))])

    count = min(episodes, 8)
    task = make(description.task, count)
    own = _episodes(task, choose, episodes, seed)
    other = _episodes(task, at_random, episodes, seed)
    task.close()
    return {
        "policy": str(directory),
        "algorithm": description.algorithm,
        "identity": identity,
        "env": description.task.env,
        "seed": seed,
        "episodes": episodes,
        "return": float(own.mean()),
        "return_interval": bootstrap_interval(own),
        "random_return": float(other.mean()),
        "random_return_interval": bootstrap_interval(other),
    }


def _draw(rng: np.random.Generator, space: Any) -> Array:
    if hasattr(space, "n"):
        return np.asarray(rng.integers(space.n))
    return np.asarray(rng.uniform(-1.0, 1.0, space.shape).astype(np.float32))


def _episodes(task: Task, choose: Choose, episodes: int, seed: int) -> DoubleArray:
    """Returns of so many episodes, the same number from each environment: the short ones are not favoured."""
    each = -(-episodes // task.count)
    observations = task.reset(seed)
    totals = np.zeros(task.count)
    found: list[list[float]] = [[] for _ in range(task.count)]
    while any(len(own) < each for own in found):
        moved = task.step(choose(observations))
        observations = moved.observations
        totals += moved.rewards
        for index in np.flatnonzero(moved.terminated | moved.truncated):
            found[index].append(float(totals[index]))
            totals[index] = 0.0
    return np.array([total for own in found for total in own[:each]][:episodes])


def export(directory: Path, out: Path) -> list[Path]:
    """Write each network of a run as its own ``.pth``: a state dict, as `torch.load` reads it.

    Returns:
        the files, by the networks' names.
    """
    description, weights, _ = read(directory)
    networks, _ = networks_of(description, weights)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, child in networks.named_children():
        if not child.state_dict():
            continue
        files.append(out / f"{name}.pth")
        torch.save(child.state_dict(), files[-1])
    return files


def described(description: Description, **changes: Any) -> Description:
    """The same with changes."""
    return dataclasses.replace(description, **changes)
