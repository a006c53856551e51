"""Learning from what was recorded: replay files into buffers, and batches half simulated, half recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scanpilot.observation import ObservationSpec
from scanpilot.replay_buffer import Batch, ReplayBuffer
from scanpilot.replay_file import ReplayFile, ReplayFileError
from scanpilot.robot import RobotSpec


def fill(buffer: ReplayBuffer, file: ReplayFile, robot: RobotSpec, observation: ObservationSpec) -> int:
    """Add a file's transitions to a buffer; returns how many.

    Raises:
        ReplayFileError: it was made for another observation, or for limits or a control period that
            give its actions another meaning.
    """
    for what, theirs, ours in (
        ("observation", file.observation, observation),
        ("limits", file.robot.limits, robot.limits),
        ("kinematics", file.robot.kinematics, robot.kinematics),
        ("control_period", file.robot.control_period, robot.control_period),
    ):
        if theirs != ours:
            raise ReplayFileError(
                f"{file.path}: was converted for {what} {theirs}, this run has {ours}: convert the bag again"
            )
    # Another file's episodes may have had the same numbers.
    buffer.forget_chains()
    return sum(buffer.add(*some) for some in file.batches())


def buffer_of(
    files: Sequence[ReplayFile],
    robot: RobotSpec,
    observation: ObservationSpec,
    seed: int,
    n_step: int = 1,
    gamma: float = 0.99,
    device: str = "cpu",
) -> ReplayBuffer:
    """A buffer that holds all transitions of these files, and has room for no more.

    Raises:
        ReplayFileError: a file does not suit, see `fill`, or there is no transition in any.
    """
    count = sum(len(file) for file in files)
    if not count:
        raise ReplayFileError(f"no transition in {', '.join(str(f.path) for f in files) or 'no file'}")
    buffer = ReplayBuffer(count, observation.scan_shape, seed, n_step=n_step, gamma=gamma, device=device)
    for file in files:
        fill(buffer, file, robot, observation)
    return buffer


def sample_both(online: ReplayBuffer, recorded: ReplayBuffer, size: int) -> Batch:
    """Half of a batch from each, as in RLPD (Ball et al. 2023, arXiv 2302.02948), section 4.1.

    Raises:
        ValueError: one of them is empty.
    """
    batch: Batch = _concatenated(online.sample(size - size // 2), recorded.sample(size // 2))
    return batch


def _concatenated(a: Any, b: Any) -> Any:
    """Tensors one after the other, all the way down two dataclasses of the same kind."""
    if a is None:
        return None
    if isinstance(a, Tensor):
        return torch.cat((a, b))
    fields = dataclasses.fields(a)
    return type(a)(**{f.name: _concatenated(getattr(a, f.name), getattr(b, f.name)) for f in fields})
