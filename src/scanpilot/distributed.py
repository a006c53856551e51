"""Collect on a Ray cluster: workers drive simulated fleets of their own with weights that are sent to them.

Ray starts the workers, brings weights and transitions where they are needed, and starts a worker that died
anew, on another machine if need be; nothing of that is done here. The replay and the learner stay in the
process that made the `RayFleet`.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from scanpilot import command
from scanpilot.fleet import Experience, SimulatedFleet
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.sac_ae_caps import SacAeCaps
from scanpilot.sim import sources
from scanpilot.trainer import TrainConfig
from scanpilot.types import FloatArray, StepResult, Triplet

logger = logging.getLogger(__name__)

# Steps of a worker's fleet that travel together: enough to make the journey cheap, and few enough that the
# weights they were driven with are new.
_STEPS = 4
# Parcels a worker is asked for in advance, so that it does not wait while one travels.
_AHEAD = 2
# Only the arrays that a replay and the live numbers read; what else a step has to tell stays where it is.
_OUTCOMES = ("actions", "rewards", "terminated", "truncated", "reached", "collided")


@dataclass(frozen=True)
class Plan:
    """What a worker makes its fleet and its agent from."""

    robot: RobotSpec
    observation: ObservationSpec
    config: TrainConfig
    seed: int


class Parcel(NamedTuple):
    """`_STEPS` steps of one worker's N robots, T in front.

    Attributes:
        life: changes when the worker was started anew, and its robots with it.
        scans: ``(T, N, k + 1, n)`` float16 metres: the stack before a step and the newest scan after it.
        before, after: the other arrays of triplets, by name.
        outcomes: arrays of `StepResult`, by name, and ``timed_out``.
    """

    life: str
    scans: NDArray[np.float16]
    before: dict[str, FloatArray]
    after: dict[str, FloatArray]
    outcomes: dict[str, NDArray[np.generic]]


class Worker:
    """Drives one simulated fleet; lives in a process of Ray's."""

    def __init__(self, plan: Plan, index: int) -> None:
        torch.set_num_threads(1)
        config = plan.config
        entropy = [plan.seed, index]
        if ray.get_runtime_context().was_current_actor_reconstructed:
            # Not once more through the worlds that it has seen.
            entropy.append(int.from_bytes(os.urandom(4), "little"))
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) % 1_000_003
        self._life = uuid.uuid4().hex
        self._fleet = SimulatedFleet(
            sources.worlds(config.world, "training", seed),
            plan.robot,
            plan.observation,
            config.task,
            config.fleet,
            seed,
        )
        self._agent = SacAeCaps(plan.observation, command.active_components(plan.robot), config.agent, seed)
        self._rng = np.random.default_rng(seed)
        self._version = -1

    def collect(self, version: int, weights: dict[str, FloatArray] | None) -> Parcel:
        """Drive `_STEPS` steps; by chance while there are no weights."""
        if weights is not None and version != self._version:
            # A copy: what Ray hands out lies in shared memory and is read-only.
            self._agent.network.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
            self._version = version
        steps = [self._step(random=weights is None) for _ in range(_STEPS)]
        scans = [np.concatenate((b.scan, r.triplets.scan[:, -1:]), 1).astype(np.float16) for b, r in steps]
        return Parcel(
            self._life,
            np.stack(scans),
            _stacked([before for before, _ in steps]),
            _stacked([result.triplets for _, result in steps]),
            {
                **{name: np.stack([getattr(result, name) for _, result in steps]) for name in _OUTCOMES},
                "timed_out": np.stack([result.info["timed_out"] for _, result in steps]),
            },
        )

    def _step(self, random: bool) -> tuple[Triplet, StepResult]:
        before = self._fleet.observe()
        if random:
            actions = command.random_actions(self._rng, self._fleet.num_robots)
        else:
            actions = self._agent.explore(before)
        return before, self._fleet.step(actions)


def _check_listens(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster at {address} ({error}): start one there with `ray start --head --port {port}`"
        ) from error


def _stacked(triplets: list[Triplet]) -> dict[str, FloatArray]:
    """The arrays of triplets other than scans, those that are there, T in front."""
    names = [field.name for field in fields(Triplet) if field.name != "scan"]
    return {
        name: np.stack([getattr(triplet, name) for triplet in triplets])
        for name in names
        if getattr(triplets[0], name) is not None
    }


class RayFleet:
    """A `fleet.Rollouts` on a Ray cluster.

    Args:
        plan: what workers are made from.
        workers: how many, each with one core and a fleet of the configured size.
        address: of a running cluster as ``ray.init`` takes it (``auto``, ``host:port``), or ``local`` to
            start one on this machine.

    Raises:
        ConnectionError: there is no cluster at the address.
    """

    def __init__(self, plan: Plan, workers: int, address: str) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}, expected at least 1")
        if address != "local":
            _check_listens(address)
        self._plan = plan
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
            if address == "local":
                # As many as asked for, however few cores there are.
                ray.init(num_cpus=workers, include_dashboard=False, **options)
            else:
                ray.init(address=address, **options)
        make = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Worker)
        self._workers = [make.remote(plan, index) for index in range(workers)]
        self._per_worker = plan.config.fleet.worlds * plan.config.fleet.robots_per_world
        self._version, self._weights = 0, ray.put(None)
        self._asked: dict[Any, int] = {}
        # Robots of a worker that was started anew are others: each life has numbers of its own.
        self._lives: dict[str, int] = {}
        self._life_of: dict[int, str] = {}
        self._newest: Triplet | None = None
        for index in range(workers):
            for _ in range(_AHEAD):
                self._ask(index)

    @property
    def num_robots(self) -> int:
        """Of all workers together."""
        return self._per_worker * len(self._workers)

    @property
    def num_workers(self) -> int:
        """That were asked for."""
        return len(self._workers)

    @property
    def robot(self) -> RobotSpec:
        """What every robot is."""
        return self._plan.robot

    @property
    def observation(self) -> ObservationSpec:
        """What every robot sees."""
        return self._plan.observation

    @property
    def replaced(self) -> int:
        """Workers that were started anew."""
        return max(0, len(self._lives) - len(self._life_of))

    def send(self, weights: dict[str, FloatArray]) -> None:
        """Broadcast weights of the acting network; workers take them with the next parcel they begin."""
        self._version, self._weights = self._version + 1, ray.put(weights)

    def receive(self, wait: bool) -> list[Experience]:
        """What has arrived since the last call; waits for the first of it if asked to."""
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=None if wait else 0)
        if ready:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        received: list[Experience] = []
        for reference in ready:
            index = self._asked.pop(reference)
            self._ask(index)
            received.extend(self._unpacked(index, ray.get(reference)))
        if received:
            self._newest = received[-1].before
        return received

    def observe(self) -> Triplet:
        """What some of the robots saw last."""
        if self._newest is None:
            self._newest = self.receive(wait=True)[-1].before
        return self._newest

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a resumed run starts new workers, whose robots start new episodes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Let the workers go, and the cluster if it was started here."""
        for worker in self._workers:
            ray.kill(worker)
        if self._owns_cluster:
            ray.shutdown()

    def _ask(self, index: int) -> None:
        reference = self._workers[index].collect.remote(self._version, self._weights)
        self._asked[reference] = index

    def _unpacked(self, index: int, parcel: Parcel) -> list[Experience]:
        before_life = self._life_of.get(index)
        if parcel.life != before_life:
            if before_life is not None:
                logger.warning("worker %d was started anew", index)
            self._life_of[index] = parcel.life
            self._lives[parcel.life] = len(self._lives)
        robots = self._lives[parcel.life] * self._per_worker + np.arange(self._per_worker)
        scans = parcel.scans.astype(np.float32)
        experiences = []
        # Copies: what Ray hands out is read-only.
        for t in range(len(scans)):
            # In an episode the stack moves on by one scan; the one after its end is the next step's before.
            before = Triplet(scan=scans[t, :, :-1], **{k: v[t].copy() for k, v in parcel.before.items()})
            after = Triplet(scan=scans[t, :, 1:], **{k: v[t].copy() for k, v in parcel.after.items()})
            outcomes: dict[str, Any] = {name: parcel.outcomes[name][t] for name in _OUTCOMES}
            info = {"timed_out": parcel.outcomes["timed_out"][t]}
            experiences.append(Experience(before, StepResult(triplets=after, info=info, **outcomes), robots))
        return experiences
