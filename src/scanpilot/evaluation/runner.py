"""Several policies through the same suite, in one process or in several: the same to the last digit.

Work is cut into the suite's batches, never by the number of processes, and every batch is driven with
one thread: how many processes share them changes nothing but the time.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from scanpilot.evaluation.episodes import Act, Episode
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.types import FloatArray, Triplet


class Contender(Protocol):
    """Who can be evaluated; a `scanpilot.policy.Policy` is one."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def identity(self) -> str:
        """Tells versions apart."""
        ...

    @property
    def robot(self) -> RobotSpec:
        """That it drives."""
        ...

    @property
    def observation(self) -> ObservationSpec:
        """That it sees."""
        ...

    def act(self, triplet: Triplet) -> FloatArray:
        """``(N, ...)`` triplets to ``(N, 3)`` actions."""
        ...


class Acts(Protocol):
    """Anything that acts on triplets."""

    def act(self, triplet: Triplet) -> FloatArray:
        """``(N, ...)`` triplets to ``(N, 3)`` actions."""
        ...


@dataclass(frozen=True)
class Named:
    """Any object with ``act``, with what an evaluation must know of it besides.

    Attributes:
        name: for people.
        actor: the object; several processes need one that can be pickled.
        robot: that it drives.
        observation: that it sees.
        identity: tells versions apart.
    """

    name: str
    actor: Acts
    robot: RobotSpec
    observation: ObservationSpec
    identity: str = ""

    def act(self, triplet: Triplet) -> FloatArray:
        """What the object does."""
        return self.actor.act(triplet)


class Batched(Protocol):
    """A suite, as far as running it goes."""

    def batches(self, episodes: int) -> Sequence[Any]:
        """What can be driven apart."""
        ...

    def drive(
        self, batch: Any, act: Act, robot: RobotSpec, observation: ObservationSpec, seed: int
    ) -> list[Episode]:
        """Drive one of them."""
        ...


def evaluate(
    contenders: Sequence[Contender], suite: Batched, episodes: int, seed: int, processes: int | None = None
) -> list[list[Episode]]:
    """The episodes of each contender, all on the same worlds, starts and goals.

    Args:
        contenders: who drives.
        suite: see `suites` and `barn`.
        episodes: for each contender.
        seed: of the suite.
        processes: that share the work; by default as many as there are cores for it.

    Raises:
        ValueError: a contender cannot be sent to another process.
    """
    batches = suite.batches(episodes)
    jobs = [(who, batch) for who in range(len(contenders)) for batch in range(len(batches))]
    processes = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    if processes <= 1:
        with _OneThread():
            driven = [_drive(contenders[who], suite, batches[batch], seed) for who, batch in jobs]
    else:
        driven = _in_processes(contenders, suite, batches, seed, jobs, processes)
    per_contender = len(batches)
    return [
        [episode for part in driven[who * per_contender : (who + 1) * per_contender] for episode in part]
        for who in range(len(contenders))
    ]


def _drive(contender: Contender, suite: Batched, batch: Any, seed: int) -> list[Episode]:
    return suite.drive(batch, contender.act, contender.robot, contender.observation, seed)


def _in_processes(
    contenders: Sequence[Contender],
    suite: Batched,
    batches: Sequence[Any],
    seed: int,
    jobs: Sequence[tuple[int, int]],
    processes: int,
) -> list[list[Episode]]:
    try:
        luggage = pickle.dumps((list(contenders), suite, list(batches), seed))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"a policy cannot be sent to another process ({error}): evaluate with processes=1"
        ) from error
    # Not by fork: a copy of a process whose numba or torch threads have run may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _unpack, (luggage,)) as pool:
        return list(pool.map(_drive_job, jobs))


# What this process drives with, when it is one of several.
_luggage: tuple[list[Contender], Batched, list[Any], int]


def _unpack(luggage: bytes) -> None:
    global _luggage
    _luggage = pickle.loads(luggage)
    _OneThread().__enter__()


def _drive_job(job: tuple[int, int]) -> list[Episode]:
    contenders, suite, batches, seed = _luggage
    who, batch = job
    return _drive(contenders[who], suite, batches[batch], seed)


class _OneThread:
    """Torch, where somebody imported it, computes with one thread: sums come out the same everywhere."""

    def __enter__(self) -> None:
        torch = sys.modules.get("torch")
        self._before = torch.get_num_threads() if torch else None
        if torch:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            sys.modules["torch"].set_num_threads(self._before)
