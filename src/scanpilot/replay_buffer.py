"""Preallocated replay of transitions; knows terminated from truncated, and who follows whom.

Scans are kept in metres as float16: its relative resolution of 1/2048 is a tenth of a lidar's
noise at any range, and it halves memory and traffic.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanpilot.types import StepResult, Triplet

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class States:
    """B states as tensors: scan ``(B, k, n)``, goal, speed and guidance ``(B, 3)``; units of `Triplet`."""

    scan: Tensor
    goal: Tensor
    speed: Tensor
    guidance: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """B sampled transitions.

    Attributes:
        states: s_t.
        actions: ``(B, 3)`` executed a_t.
        returns: ``(B,)`` sum of the next h rewards, discounted, h <= n steps within the episode.
        discounts: ``(B,)`` gamma^h, or 0 where the episode terminated: what multiplies the
            value of ``bootstrap``.
        bootstrap: s_{t+h}, the true successor, never a reset's.
        successors: s_{t+1}, the true successor, for the temporal CAPS term.
    """

    states: States
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    bootstrap: States
    successors: States


class ReplayBuffer:
    """A ring of transitions.

    Args:
        capacity: transitions kept.
        scan_shape: (k, n).
        seed: of sampling.
        n_step: length of the returns that `sample` gives.
        gamma: discount per step.
        device: where the ring lies and batches are made.
    """

    def __init__(
        self,
        capacity: int,
        scan_shape: tuple[int, int],
        seed: int,
        n_step: int = 1,
        gamma: float = 0.99,
        device: str = "cpu",
    ) -> None:
        if capacity < 1 or n_step < 1:
            raise ValueError(f"capacity {capacity} and n_step {n_step} must be positive")
        frames, beams = scan_shape
        self.capacity = capacity
        self.n_step, self.gamma = n_step, gamma
        self.rejected = 0
        self._device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

        def ring(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((capacity, *shape), dtype=dtype, device=self._device)

        # The successor's older frames are this state's newer ones: only its newest is kept.
        self._scan = ring(frames + 1, beams, dtype=torch.float16)
        self._goal, self._speed, self._guidance = ring(2, 3), ring(2, 3), ring(2, 3)
        self._action, self._reward = ring(3), ring()
        self._terminated = ring(dtype=torch.bool)
        # Slot of the next transition of the same episode; -1: the episode ended, or it is not here yet.
        self._next = torch.full((capacity,), -1, dtype=torch.long, device=self._device)
        self._added = 0
        # Each robot's newest transition, counted from the beginning, while its episode goes on.
        self._last: dict[int, int] = {}

    def __len__(self) -> int:
        """Transitions held."""
        return min(self._added, self.capacity)

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self._added

    def add(self, before: Triplet, result: StepResult, robots: NDArray[np.int64] | None = None) -> int:
        """Add one transition of each of N robots; returns how many were added.

        A transition that holds a number that is not finite is left out, counted in
        ``rejected``, and ends the chain of its robot.

        Args:
            before: the states that the actions were chosen in.
            result: what came of them.
            robots: ids, (N,); 0..N-1 by default. An id's transitions follow one another
                until its episode ends.
        """
        ids = np.arange(len(before)) if robots is None else robots
        good = _finite_rows(before, result)
        if not good.all():
            self.rejected += int((~good).sum())
            logger.warning("replay: left out %d transitions with numbers that are not finite", (~good).sum())
            for robot in ids[~good]:
                self._last.pop(int(robot), None)
        rows = np.flatnonzero(good)
        # More robots than room would write a slot twice in one go; the oldest rows give way.
        rows = rows[-self.capacity :]
        if not rows.size:
            return 0
        serials = self._added + np.arange(rows.size)
        slots = serials % self.capacity
        self._write(before, result, rows, slots)
        self._chain(ids[rows], serials, (result.terminated | result.truncated)[rows])
        self._added += rows.size
        return int(rows.size)

    def _write(
        self,
        before: Triplet,
        result: StepResult,
        rows: NDArray[Any],
        slots: NDArray[Any],
    ) -> None:
        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

        at = tensor(slots)
        after = result.triplets
        self._scan[at, :-1] = tensor(before.scan[rows]).half()
        self._scan[at, -1] = tensor(after.scan[rows, -1]).half()
        self._goal[at, 0], self._goal[at, 1] = tensor(before.goal[rows]), tensor(after.goal[rows])
        self._speed[at, 0], self._speed[at, 1] = tensor(before.speed[rows]), tensor(after.speed[rows])
        for place, triplet in enumerate((before, after)):
            # A policy without guidance has no use for what stands there.
            if triplet.guidance is not None:
                self._guidance[at, place] = tensor(triplet.guidance[rows])
        self._action[at] = tensor(result.actions[rows])
        self._reward[at] = tensor(result.rewards[rows])
        self._terminated[at] = tensor(result.terminated[rows])
        self._next[at] = -1

    def _chain(self, robots: NDArray[Any], serials: NDArray[Any], ended: NDArray[np.bool_]) -> None:
        """Link each robot's previous transition to this one.

        Links lead from older to newer transitions, and the older is overwritten first, its link with
        it: so no link leads across the ring's pointer.
        """
        previous, following = [], []
        newest = int(serials[-1])
        for robot, serial, end in zip(robots.tolist(), serials.tolist(), ended.tolist(), strict=True):
            last = self._last.pop(robot, None)
            # Else the slot of the last one is another robot's by now.
            if last is not None and newest - last < self.capacity:
                previous.append(last % self.capacity)
                following.append(serial % self.capacity)
            if not end:
                self._last[robot] = serial
        if previous:
            links = torch.tensor((previous, following), device=self._device)
            self._next[links[0]] = links[1]

    def forget_chains(self) -> None:
        """What is added next follows nothing that is here: all robots were reset, or it is another fleet."""
        self._last.clear()

    def sample(self, size: int) -> Batch:
        """``size`` transitions drawn uniformly with replacement.

        Raises:
            ValueError: the buffer is empty.
        """
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        picked = torch.randint(len(self), (size,), generator=self._generator).to(self._device)
        return self.gather(picked)

    def gather(self, slots: Tensor) -> Batch:
        """The transitions in these slots, ``(B,)``, with their n-step returns."""
        returns = self._reward[slots]
        discounts = torch.full_like(returns, self.gamma)
        last, alive = slots, torch.ones_like(slots, dtype=torch.bool)
        for _ in range(self.n_step - 1):
            following = self._next[last]
            alive = alive & (following >= 0)
            following = following.clamp_min(0)
            returns = returns + torch.where(alive, discounts * self._reward[following], 0.0)
            discounts = torch.where(alive, discounts * self.gamma, discounts)
            last = torch.where(alive, following, last)
        discounts = discounts * (~self._terminated[last])
        scans = self._scan[slots].float()
        successors = States(
            scans[:, 1:], self._goal[slots, 1], self._speed[slots, 1], self._guidance[slots, 1]
        )
        bootstrap = successors
        if self.n_step > 1:
            bootstrap = States(
                self._scan[last, 1:].float(),
                self._goal[last, 1],
                self._speed[last, 1],
                self._guidance[last, 1],
            )
        return Batch(
            states=States(
                scans[:, :-1], self._goal[slots, 0], self._speed[slots, 0], self._guidance[slots, 0]
            ),
            actions=self._action[slots],
            returns=returns,
            discounts=discounts,
            bootstrap=bootstrap,
            successors=successors,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, for `checkpoint.write_state`; only the part of the ring in use."""
        used = len(self)
        return {
            "arrays": {name: getattr(self, name)[:used] for name in self._arrays()},
            "added": self._added,
            "rejected": self.rejected,
            "last": {str(k): v for k, v in self._last.items()},
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            ValueError: it is of another capacity or scan shape.
        """
        used = min(int(state["added"]), self.capacity)
        for name in self._arrays():
            saved, own = state["arrays"][name], getattr(self, name)
            if saved.shape[1:] != own.shape[1:] or saved.shape[0] != used:
                raise ValueError(
                    f"replay {name[1:]} of shape {tuple(saved.shape)} does not fit {tuple(own.shape)}"
                )
            own[:used] = saved.to(self._device)
        self._added = int(state["added"])
        self.rejected = int(state["rejected"])
        self._last = {int(k): int(v) for k, v in state["last"].items()}
        self._generator.set_state(state["generator"])

    @staticmethod
    def _arrays() -> tuple[str, ...]:
        return ("_scan", "_goal", "_speed", "_guidance", "_action", "_reward", "_terminated", "_next")


def _finite_rows(before: Triplet, result: StepResult) -> NDArray[np.bool_]:
    """(N,) which transitions hold finite numbers only."""
    after = result.triplets
    count = len(before)
    good = np.isfinite(result.rewards)
    for array in (
        before.scan,
        after.scan,
        before.goal,
        after.goal,
        before.speed,
        after.speed,
        result.actions,
    ):
        good = good & np.isfinite(array.reshape(count, -1)).all(1)
    return good
