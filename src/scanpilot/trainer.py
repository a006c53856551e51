"""Collect, store, update, validate, publish. Drives any `Fleet`; does not know which.

Also knows when it is done (minutes or steps), saves so that a killed run goes on, and says how
it goes to the `TrainingLog` it is given.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scanpilot import __version__, checkpoint, command, configuration, failures
from scanpilot.fleet import Experience, Fleet, FleetConfig, Rollouts
from scanpilot.manifest import PolicyManifest
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.sac_ae_caps import AgentConfig, SacAeCaps
from scanpilot.task import TaskConfig, return_bound
from scanpilot.training_log import TrainingLog
from scanpilot.types import BoolArray, FloatArray, StepResult, Triplet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

Validate = Callable[[Callable[[Triplet], FloatArray]], dict[str, Any]]


@dataclass(frozen=True)
class ObservationConfig:
    """What the policy is to see; its field of view comes from the robot's lidar.

    Attributes:
        beams: sectors.
        frames: stacked scans.
        range_min, range_max: metres.
        guidance: the policy is also told which way round the scan suggests, see `scanpilot.guidance`.
    """

    beams: int = 180
    frames: int = 3
    range_min: float = 0.2
    range_max: float = 20.0
    guidance: bool = True


@dataclass(frozen=True)
class TrainConfig:
    """All that ``config/train.yaml`` says.

    Attributes:
        world: a generator's name, or a world file.
        observation, task, fleet, agent: the parts.
        replay_capacity: transitions kept.
        warmup_steps: robot steps of random actions before the first update.
        updates_per_step: updates after each step of the whole fleet.
        validations: how often, evenly over the budget from ``validate_from`` on, the policy is
            validated and, unless it is worse than the one before beyond doubt, published.
        validate_from: fraction of the budget before which it is not worth the time.
        validation_episodes: on worlds that training never sees.
        save_seconds: between two saves of the training state.
        threads: of torch. Two gain a third on two idle cores, and lose more on cores with other work.
    """

    world: str = "clutter"
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    replay_capacity: int = 500_000
    warmup_steps: int = 5_000
    updates_per_step: int = 8
    validations: int = 3
    validate_from: float = 0.4
    validation_episodes: int = 128
    save_seconds: float = 120.0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.replay_capacity < self.agent.batch_size:
            raise ValueError("replay_capacity is smaller than one batch")
        if not 0.0 <= self.validate_from < 1.0:
            raise ValueError(f"validate_from is {self.validate_from}, expected at least 0 and less than 1")
        if self.updates_per_step < 1 or self.validations < 1 or self.validation_episodes < 1:
            raise ValueError("updates_per_step, validations and validation_episodes must be at least 1")


@dataclass(frozen=True)
class Budget:
    """When training is over: after so many minutes (without the time to set up), or robot steps.

    Attributes:
        minutes, steps: one of them.
        until_success: fraction of validation episodes; a published policy that reaches it ends the training.
    """

    minutes: float | None = None
    steps: int | None = None
    until_success: float | None = None

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give either minutes or steps")
        if not (self.minutes or self.steps or 0) > 0:
            raise ValueError("the budget of training must be positive")
        if self.until_success is not None and not 0.0 < self.until_success <= 1.0:
            raise ValueError(f"until_success is {self.until_success}, expected more than 0 and at most 1")

    def fraction(self, seconds: float, steps: int) -> float:
        """How much is used up, 0 to 1."""
        if self.minutes is not None:
            return min(1.0, seconds / (60.0 * self.minutes))
        assert self.steps is not None
        return min(1.0, steps / self.steps)


class Trainer:
    """One training run.

    Args:
        fleet: what collects: robots that are driven from here step by step, or that act by themselves.
        agent: what learns.
        replay: where transitions wait.
        manifest: what the published policies say of themselves; training and evaluation are added.
        config: of the run.
        budget: when it is over.
        run: directory that gets ``policy`` (the best, which is published), ``policies`` (published ones),
            ``last`` (the latest that was validated), ``training`` and ``log.jsonl``.
        validate: drives a policy through validation episodes and summarises them.
        log: who is told.
        seed: of the run; here, of the warm-up's random actions.
        pictures: what is drawn after each validation, by name.
    """

    def __init__(
        self,
        fleet: Fleet | Rollouts,
        agent: SacAeCaps,
        replay: ReplayBuffer,
        manifest: PolicyManifest,
        config: TrainConfig,
        budget: Budget,
        run: Path,
        validate: Validate,
        log: TrainingLog,
        seed: int,
        pictures: Callable[[], dict[str, Figure]] = dict,
    ) -> None:
        self._fleet, self._agent, self._replay = fleet, agent, replay
        self._manifest, self._config, self._budget = manifest, config, budget
        self._run, self._validate, self._log, self._pictures = run, validate, log, pictures
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self.steps = 0
        self.published: dict[str, Any] | None = None
        self._not_published: OSError | None = None
        self._validated = 0
        self._seconds = 0.0
        self._recent: deque[str] = deque(maxlen=500)
        self._losses: dict[str, Any] = {}
        self._motion = _Motion(command.active_components(fleet.robot))
        self._watch = failures.Watch()
        self._stepper = ThreadPoolExecutor(1, "fleet")

    def train(self) -> dict[str, Any]:
        """Train until the budget is used up; returns the validation of the published policy.

        Raises:
            OSError: not one policy could be published; the training state is saved if it could be.
        """
        if not (self._run / "training").exists():
            # Whenever it is killed from now on, it can be resumed.
            self.save()
        started, saved = time.monotonic() - self._seconds, time.monotonic()
        while True:
            self._seconds = time.monotonic() - started
            fraction = self._budget.fraction(self._seconds, self.steps)
            if self._validated < self._validations_due(fraction):
                self._publish_unless_worse(fraction)
            if fraction >= 1.0 or self._good_enough():
                break
            if time.monotonic() - saved > self._config.save_seconds:
                self.save()
                saved = time.monotonic()
            self._agent.set_progress(fraction)
            if isinstance(self._fleet, Rollouts):
                self._exchange(self._fleet)
            else:
                self._collect(meanwhile=self._learn)
            self._report(fraction)
        self.save()
        if self.published is None:
            assert self._not_published is not None
            raise self._not_published
        return self.published

    def _good_enough(self) -> bool:
        wanted = self._budget.until_success
        return wanted is not None and self.published is not None and self.published["success"] >= wanted

    def _validations_due(self, fraction: float) -> int:
        late = (fraction - self._config.validate_from) / (1.0 - self._config.validate_from)
        return 1 + math.floor(late * (self._config.validations - 1)) if late >= 0.0 else 0

    def _collect(self, meanwhile: Callable[[], None]) -> None:
        """One step of the fleet, in a thread of its own while this one does something else.

        What is learned meanwhile is learned from what was there before, whichever thread is faster: a run
        does not depend on timing.
        """
        fleet = self._fleet
        assert not isinstance(fleet, Rollouts)
        triplets = fleet.observe()
        if self.steps < self._config.warmup_steps:
            actions = command.random_actions(self._rng, fleet.num_robots)
        else:
            actions = self._agent.explore(triplets)
        stepping = self._stepper.submit(fleet.step, actions)
        meanwhile()
        self._store(Experience(triplets, stepping.result(), np.arange(fleet.num_robots)))

    def _exchange(self, rollouts: Rollouts) -> None:
        """Weights for what robots have sent that act by themselves, and updates for what they sent.

        As many updates as for steps of a fleet of the configured size, but at most those of four steps at
        a time: robots may bring more than can be learned from, and must not wait for it.
        """
        config = self._config
        if self.steps >= config.warmup_steps:
            weights = self._agent.network.state_dict()
            rollouts.send({name: value.detach().cpu().numpy() for name, value in weights.items()})
        before = self.steps
        for experience in rollouts.receive(wait=True):
            self._store(experience)
        fleet_steps = (self.steps - before) / (config.fleet.worlds * config.fleet.robots_per_world)
        self._learn(math.ceil(min(fleet_steps, 4.0) * config.updates_per_step))

    def _store(self, experience: Experience) -> None:
        before, result, robots = experience
        self._replay.add(before, result, robots)
        if self.steps >= self._config.warmup_steps:
            self._motion.note(result, robots)
        self.steps += len(before)
        self._note_outcomes(result)

    def _learn(self, updates: int | None = None) -> None:
        if self.steps < self._config.warmup_steps or not len(self._replay):
            return
        for _ in range(self._config.updates_per_step if updates is None else updates):
            self._losses.update(self._agent.update(self._replay.sample(self._agent.config.batch_size)))

    def _note_outcomes(self, result: StepResult) -> None:
        self._recent.extend(["success"] * int(result.reached.sum()))
        self._recent.extend(["collision"] * int(result.collided.sum()))
        # Not those cut because their world gave way: they say nothing of the policy.
        timed_out = result.info.get("timed_out", result.truncated).astype(np.bool_) & ~result.terminated
        self._recent.extend(["timeout"] * int(timed_out.sum()))

    def _report(self, fraction: float) -> None:
        if not self._log.due():
            return
        numbers: dict[str, float] = {name: float(value) for name, value in self._losses.items()}
        count = max(1, len(self._recent))
        for outcome in ("success", "collision", "timeout"):
            numbers[f"charts/{outcome}"] = self._recent.count(outcome) / count
        numbers["charts/episodes_counted"] = len(self._recent)
        numbers["charts/rejected_transitions"] = self._replay.rejected
        numbers["charts/skipped_updates"] = self._agent.skipped
        numbers.update(self._motion.numbers())
        self._log.progress(fraction, self._seconds, self.steps, self._agent.updates, numbers)
        for failure in self._watch.look(self._signs(numbers)):
            self._log.failure(self._seconds, self.steps, self._agent.updates, failure)

    def _signs(self, numbers: dict[str, float]) -> failures.Signs:
        def known(name: str) -> float:
            return numbers.get(name, math.nan)

        config = self._config
        return failures.Signs(
            success=known("charts/success"),
            timeout=known("charts/timeout"),
            episodes=len(self._recent),
            forward=known("charts/forward"),
            turn=known("charts/turn"),
            entropy=known("values/entropy"),
            target_entropy=self._agent.target_entropy,
            temperature=known("values/alpha"),
            value=known("values/q"),
            value_bound=return_bound(config.task, config.fleet.goal_distance[1], config.agent.gamma),
            critic_loss=known("losses/critic"),
            feature_spread=known("values/feature_spread"),
            updates=self._agent.updates,
            skipped=self._agent.skipped,
            rejected=self._replay.rejected / max(1, self._replay.rejected + self._replay.added),
        )

    def _publish_unless_worse(self, fraction: float) -> None:
        self._validated = self._validations_due(fraction)
        summary = self._validate(self._agent.act)
        self._log.validation(self._seconds, self.steps, self._agent.updates, summary, self._pictures())
        manifest = self._described(summary)
        networks = (self._agent.average_network, self._agent.average_decoder)
        try:
            checkpoint.write_policy(self._run / "last", manifest, *networks)
        except OSError as error:
            logger.error("last policy not written to %s: %s", self._run, error)
        # A later policy has seen more and learned at a lower rate. It gives way only to one that was better
        # beyond the noise of so few episodes; taking the highest number would select lucky early ones.
        if self.published is not None and summary["success"] < self.published["success_interval"][0]:
            return
        try:
            checkpoint.publish(self._run, manifest, *networks, self.steps)
        except OSError as error:
            logger.error("policy not published to %s: %s", self._run, error)
            self._not_published = error
            return
        self.published = summary

    def _described(self, summary: dict[str, Any]) -> PolicyManifest:
        return dataclasses.replace(
            self._manifest,
            training={
                **self._manifest.training,
                "scanpilot": __version__,
                "steps": self.steps,
                "updates": self._agent.updates,
                "minutes": round(self._seconds / 60.0, 3),
            },
            evaluation={"validation": summary},
        )

    def _identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one it goes on from; flat, to name the odd one."""
        config = configuration.to_dict(self._config)
        # How fast a machine works, and how often it saves, changes nothing of what is learned.
        for name in ("threads", "save_seconds"):
            del config[name]
        parts = {name: json.dumps(value) for name, value in config.items()}
        robot = json.dumps(configuration.to_dict(self._manifest.robot))
        return {"seed": self._seed, "robot": robot, "fleet": type(self._fleet).__name__, **parts}

    def save(self) -> None:
        """Write all that `restore` needs; a full disk is reported, and training goes on."""
        try:
            checkpoint.write_state(self._run / "training", self.state_dict())
        except OSError as error:
            logger.error("training state not saved to %s: %s", self._run / "training", error)

    def state_dict(self) -> dict[str, Any]:
        """Agent, replay, fleet, counters and random states."""
        return {
            "identity": self._identity(),
            "agent": self._agent.state_dict(),
            "replay": self._replay.state_dict(),
            "fleet": self._fleet.state_dict(),
            "rng": self._rng.bit_generator.state,
            "steps": self.steps,
            "seconds": self._seconds,
            "validated": self._validated,
            "published": self.published,
            "recent": list(self._recent),
        }

    def restore(self) -> None:
        """Go on from what `save` wrote.

        Raises:
            checkpoint.CheckpointError: there is none, it is damaged, or it is of another robot, seed or
                configuration.
        """
        checkpoint.recover_directory(self._run / "training")
        state = checkpoint.read_state(self._run / "training")
        for name, own in self._identity().items():
            if state["identity"].get(name) != own:
                raise checkpoint.CheckpointError(
                    f"{self._run / 'training'}: was trained with another {name}: "
                    f"{state['identity'].get(name)}, now it is {own}"
                )
        self._agent.load_state_dict(state["agent"])
        self._replay.load_state_dict(state["replay"])
        self._fleet.load_state_dict(state["fleet"])
        if isinstance(self._fleet, Rollouts):
            self._replay.forget_chains()
        self._rng.bit_generator.state = state["rng"]
        self.steps, self._seconds = int(state["steps"]), float(state["seconds"])
        self._validated, self.published = int(state["validated"]), state["published"]
        self._recent = deque(state["recent"], maxlen=self._recent.maxlen)


class _Motion:
    """How robots move while they explore: means over the last steps of the whole fleet."""

    def __init__(self, active: BoolArray, steps: int = 200) -> None:
        self._active = active
        self._previous: tuple[NDArray[np.int64], FloatArray] | None = None
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=steps)

    def note(self, result: StepResult, robots: NDArray[np.int64]) -> None:
        actions = before = result.actions
        if self._previous is not None and np.array_equal(self._previous[0], robots):
            before = self._previous[1]
        change = np.abs(actions - before)[:, self._active].mean()
        self._previous = (robots, actions)
        self._rows.append((float(actions[:, 0].mean()), float(np.abs(actions[:, 2]).mean()), float(change)))

    def numbers(self) -> dict[str, float]:
        if not self._rows:
            return {}
        names = ("charts/forward", "charts/turn", "charts/action_change")
        return dict(zip(names, np.mean(self._rows, axis=0).tolist(), strict=True))
