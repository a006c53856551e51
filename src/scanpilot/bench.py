"""How fast things are on this machine: simulator, learner, inference. Timings are benchmarks, not tests."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scanpilot import resources
from scanpilot.robot import load_robot
from scanpilot.types import StepResult, Triplet

if TYPE_CHECKING:
    from scanpilot.checkpoint import Backend
    from scanpilot.policy import Policy


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def bench_learner(seconds: float, threads: int) -> dict[str, Any]:
    """Updates per second on made-up transitions, sampling included, measured in turn.

    Of the shipped configuration, of ours at the reference's sizes, and of the reference's transcription.
    """
    import torch

    from scanpilot.reference import ReferenceLearner, Replay

    torch.set_num_threads(threads)
    learner, replay = ReferenceLearner(), Replay(np.random.default_rng(0))
    ours, same_sizes, reference = _rates(
        [_our_update("train"), _our_update("reference"), lambda: learner.update(replay)], seconds
    )
    return {
        "updates_per_s": ours,
        "reference_updates_per_s": reference,
        "ratio": ours / reference,
        "at_reference_sizes_updates_per_s": same_sizes,
        "at_reference_sizes_ratio": same_sizes / reference,
        "threads": threads,
    }


def _our_update(config_name: str) -> Callable[[], Any]:
    """One update of our agent at a shipped configuration."""
    from scanpilot import command, configuration
    from scanpilot.observation import observation_for
    from scanpilot.replay_buffer import ReplayBuffer
    from scanpilot.sac_ae_caps import SacAeCaps
    from scanpilot.trainer import TrainConfig

    config = configuration.load(TrainConfig, resources.root() / "config" / f"{config_name}.yaml")
    robot = load_robot(resources.find("robot", "generic_diff"))
    observation = observation_for(robot, **dataclasses.asdict(config.observation))
    agent = SacAeCaps(observation, command.active_components(robot), config.agent, 0)
    replay = ReplayBuffer(20_000, observation.scan_shape, 0, config.agent.n_step, config.agent.gamma)
    rng = np.random.default_rng(0)
    while len(replay) < replay.capacity:
        before, result = _made_up(rng, 256, observation.scan_shape)
        replay.add(before, result)
    return lambda: agent.update(replay.sample(config.agent.batch_size))


def bench_ray(workers: Sequence[int], seconds: float) -> dict[str, Any]:
    """Robot steps per second that so many workers of a Ray cluster on this machine collect.

    They act with an untrained policy at the shipped training configuration, and nobody learns meanwhile.
    """
    from scanpilot import configuration, distributed
    from scanpilot.command import active_components
    from scanpilot.observation import observation_for
    from scanpilot.sac_ae_caps import SacAeCaps
    from scanpilot.trainer import TrainConfig

    config = configuration.load(TrainConfig, resources.root() / "config" / "train.yaml")
    robot = load_robot(resources.find("robot", "generic_diff"))
    observation = observation_for(robot, **dataclasses.asdict(config.observation))
    network = SacAeCaps(observation, active_components(robot), config.agent, 0).network
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    rates = []
    for count in workers:
        fleet = distributed.RayFleet(distributed.Plan(robot, observation, config, 0), count, "local")
        try:
            fleet.send(weights)
            rates.append(_collected(fleet, seconds))
        finally:
            fleet.close()
    return {
        "collection": [
            {"workers": count, "robot_steps_per_s": rate, "ratio": rate / rates[0]}
            for count, rate in zip(workers, rates, strict=True)
        ]
    }


def _collected(fleet: Any, seconds: float) -> float:
    """Robot steps per second, counted from when every worker has compiled its code and sent something."""
    per_worker = fleet.num_robots // fleet.num_workers
    started: set[int] = set()
    while len(started) < fleet.num_workers:
        started |= {int(experience.robots[0]) // per_worker for experience in fleet.receive(wait=True)}
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        steps += sum(len(experience.robots) for experience in fleet.receive(wait=True))
    return steps / (time.perf_counter() - begun)


def bench_inference(policy: Path, seconds: float) -> dict[str, Any]:
    """Time of one robot's ``act`` and of one whole control tick by each backend, one thread, milliseconds.

    A backend whose package, or whose file in the policy directory, is not there is left out.
    """
    from scanpilot import checkpoint

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results: dict[str, Any] = {}
    backends: tuple[Backend, ...] = ("torch", "onnx")
    for backend in backends:
        with contextlib.suppress(checkpoint.CheckpointError):
            results[backend] = _time_policy(checkpoint.load_policy(policy, backend), seconds)
    return results


def _time_policy(policy: Policy, seconds: float) -> dict[str, float]:
    from scanpilot.navigator import Navigator, NavigatorConfig
    from scanpilot.observation import with_guidance
    from scanpilot.types import LaserScan, Odometry, Pose2D, Twist2D

    rng = np.random.default_rng(0)
    batch, _ = _made_up(rng, 1, policy.observation.scan_shape)
    # Whoever drives has it at hand; without it each act would find it anew.
    triplet = with_guidance(batch, policy.observation)[0]
    navigator = Navigator(NavigatorConfig(), policy)
    navigator.set_goal(Pose2D(5.0, 1.0, 0.0))
    scans = rng.uniform(0.5, 8.0, (50, 720)).astype(np.float32)
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        now = time.monotonic()
        ranges = scans[ticks % len(scans)]
        navigator.set_scan(LaserScan(ranges, -np.pi, 2 * np.pi / 720, 0.1, 10.0, now), now)
        navigator.set_odometry(Odometry(Pose2D(0.0, 0.0, 0.0), Twist2D(0.2, 0.0, 0.0), now), now)
        navigator.tick(now)

    result = {}
    for name, work in (("act", lambda: policy.act(triplet)), ("tick", tick)):
        times = _times(work, seconds)
        result[f"{name}_p50_ms"] = 1e3 * float(np.quantile(times, 0.5))
        result[f"{name}_p99_ms"] = 1e3 * float(np.quantile(times, 0.99))
    return result


def _made_up(rng: np.random.Generator, count: int, scan_shape: tuple[int, int]) -> tuple[Triplet, StepResult]:
    def triplet() -> Triplet:
        return Triplet(
            rng.uniform(0.3, 10.0, (count, *scan_shape)).astype(np.float32),
            rng.normal(0.0, 3.0, (count, 3)).astype(np.float32),
            rng.normal(0.0, 0.5, (count, 3)).astype(np.float32),
        )

    none = np.zeros(count, dtype=np.bool_)
    result = StepResult(
        triplets=triplet(),
        actions=rng.uniform((0.0, 0.0, -1.0), (1.0, 0.0, 1.0), (count, 3)).astype(np.float32),
        rewards=rng.normal(size=count).astype(np.float32),
        terminated=rng.random(count) < 0.02,
        truncated=none,
        reached=none,
        collided=none,
    )
    return triplet(), result


def _rates(works: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Calls per second of each, after a warm-up.

    The median of five parts that take turns, so that neither a hiccup nor a busy minute decides.
    """
    rates: list[list[float]] = [[] for _ in works]
    for work in works:
        for _ in range(2):
            work()
    for _ in range(5):
        for work, own in zip(works, rates, strict=True):
            begun, calls = time.perf_counter(), 0
            # An even number: every second update also moves the actor.
            while calls % 2 or time.perf_counter() - begun < seconds / 5:
                work()
                calls += 1
            own.append(calls / (time.perf_counter() - begun))
    return [float(np.median(own)) for own in rates]


def _times(work: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call, after a warm-up."""
    for _ in range(20):
        work()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return times
