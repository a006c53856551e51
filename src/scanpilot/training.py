"""Put a training run together from its configuration: what ``scanpilot train`` does."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scanpilot import checkpoint, command, configuration
from scanpilot.configuration import ConfigurationError
from scanpilot.evaluation import report
from scanpilot.evaluation.episodes import Episode
from scanpilot.evaluation.metrics import summarise
from scanpilot.evaluation.suites import Suite, run_suite
from scanpilot.fleet import Rollouts, SimulatedFleet
from scanpilot.manifest import PolicyManifest
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.sac_ae_caps import SacAeCaps
from scanpilot.sim import sources
from scanpilot.trainer import Budget, TrainConfig, Trainer
from scanpilot.training_log import TrainingLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def train(
    robot: Path,
    config: Path,
    out: Path,
    seed: int,
    minutes: float | None = None,
    steps: int | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    until_success: float | None = None,
    ray: str | None = None,
    workers: int = 2,
) -> dict[str, Any]:
    """Train a policy in the embedded simulator.

    Args:
        robot: its YAML file.
        config: the training configuration's YAML file.
        out: directory of the run.
        seed: of everything.
        minutes, steps: when it is over; one of them.
        overrides: ``key=value`` for the configuration.
        resume: go on with the run in ``out``.
        until_success: stop as soon as a published policy succeeds in this fraction of validation episodes.
        ray: address of a Ray cluster to collect on, or ``local``; see `distributed`.
        workers: how many there.

    Returns:
        The validation of the published policy.

    Raises:
        ConfigurationError: names file, line and what was expected.
        CheckpointError: there is nothing to resume, or it is damaged.
    """
    spec = load_robot(robot)
    settings = configuration.load(TrainConfig, config, overrides)
    checkpoint.recover_directory(out / "training")
    if (out / "training").exists() and not resume:
        raise ConfigurationError(
            f"{out} holds a run already: give --resume to go on with it, or another --out"
        )
    torch.set_num_threads(settings.threads)
    observation = observation_for(
        spec,
        settings.observation.beams,
        settings.observation.frames,
        settings.observation.range_min,
        settings.observation.range_max,
        settings.observation.guidance,
    )
    if settings.agent.mirror and not spec.is_symmetric:
        logger.warning("%s is not the same in a mirror: training without agent.mirror", spec.name)
        settings = replace(settings, agent=replace(settings.agent, mirror=False))
    fleet = _fleet(spec, observation, settings, seed, ray, workers)
    agent = SacAeCaps(
        observation,
        command.active_components(spec),
        settings.agent,
        seed,
        turn_per_forward=command.turn_per_forward(spec),
    )
    replay = ReplayBuffer(
        settings.replay_capacity, observation.scan_shape, seed, settings.agent.n_step, settings.agent.gamma
    )
    manifest = PolicyManifest(
        name=spec.name,
        robot=spec,
        observation=observation,
        network=settings.agent.network,
        control_period=spec.control_period,
        training={
            "command": " ".join(["scanpilot", *sys.argv[1:]]),
            "seed": seed,
            "world": settings.world,
            "config": configuration.to_dict(settings),
        },
    )
    suite = Suite("validation", 1, settings.world, settings.fleet.robots_per_world)

    driven: list[Episode] = []

    def validate(act: Any) -> dict[str, Any]:
        driven[:] = run_suite(
            suite,
            act,
            spec,
            observation,
            settings.validation_episodes,
            seed,
            stream="validation",
            task=settings.task,
            # The learner waits: its core is free.
            threads=min(2, len(os.sched_getaffinity(0))),
        )
        return summarise(driven, command.active_components(spec))

    def pictures() -> dict[str, Figure]:
        seen = fleet.observe()[:4]
        return {
            "trajectories": report.trajectories_figure(driven, f"{spec.name}: validation"),
            "reconstructions": report.reconstructions_figure(
                seen.scan[:, -1], agent.reconstruct(seen), observation
            ),
        }

    log = TrainingLog(out)
    try:
        trainer = Trainer(
            fleet,
            agent,
            replay,
            manifest,
            settings,
            Budget(minutes, steps, until_success),
            out,
            validate,
            log,
            seed,
            pictures,
        )
        if resume:
            trainer.restore()
        return trainer.train()
    finally:
        log.close()
        fleet.close()


def _fleet(
    robot: RobotSpec,
    observation: ObservationSpec,
    settings: TrainConfig,
    seed: int,
    ray: str | None,
    workers: int,
) -> SimulatedFleet | Rollouts:
    """What collects: a fleet in this process, or workers on a Ray cluster."""
    if ray is None:
        worlds = sources.worlds(settings.world, "training", seed)
        return SimulatedFleet(worlds, robot, observation, settings.task, settings.fleet, seed)
    try:
        from scanpilot import distributed
    except ModuleNotFoundError as error:
        raise ConfigurationError("collecting on Ray needs it: pip install 'scanpilot[ray]'") from error
    try:
        return distributed.RayFleet(distributed.Plan(robot, observation, settings, seed), workers, ray)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"--ray {ray} --workers {workers}: {error}") from error
