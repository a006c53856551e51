"""A trained policy for inference: triplets in, clipped actions out, by torch or by ONNX Runtime.

Reads no files (see `checkpoint`) and imports neither of the two: `torch_inference` and
`onnx_inference` run the networks, and both are asked in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from scanpilot import command
from scanpilot.manifest import PolicyManifest
from scanpilot.observation import ObservationSpec, with_guidance
from scanpilot.robot import RobotSpec
from scanpilot.types import FloatArray, Triplet


class Inference(Protocol):
    """Runs a policy's networks on batches.

    Inputs are named as the fields of `Triplet`, float32, N in front; see `named_inputs`.
    """

    @property
    def backend(self) -> str:
        """``torch`` or ``onnx``."""

    def actions(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, 3)`` mean actions, squashed."""

    def scans(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, n)`` what the autoencoder makes of the newest scans, metres."""


def named_inputs(triplet: Triplet) -> dict[str, FloatArray]:
    """The arrays of a batch by their names, each contiguous; what an `Inference` takes."""
    return {
        field.name: np.ascontiguousarray(value)
        for field in dataclasses.fields(triplet)
        if (value := getattr(triplet, field.name)) is not None
    }


class Policy:
    """Acts by the mean of the trained distribution.

    Args:
        manifest: what the policy is.
        inference: runs its networks.
        identity: short content hash that names these weights.
    """

    def __init__(self, manifest: PolicyManifest, inference: Inference, identity: str) -> None:
        self.manifest = manifest
        self.inference = inference
        self.identity = identity

    @property
    def name(self) -> str:
        """The policy's name, for people."""
        return self.manifest.name

    @property
    def robot(self) -> RobotSpec:
        """The robot it was trained for."""
        return self.manifest.robot

    @property
    def observation(self) -> ObservationSpec:
        """What it sees."""
        return self.manifest.observation

    @property
    def control_period(self) -> float:
        """Seconds between two actions."""
        return self.manifest.control_period

    def act(self, triplet: Triplet) -> FloatArray:
        """Executable action of one robot ``(3,)`` or of a batch ``(N, 3)``, float32, clipped.

        Raises:
            scanpilot.types.InvalidInput: the network's output is not finite.
        """
        batch = with_guidance(triplet.batched(), self.observation)
        out = self.inference.actions(named_inputs(batch))
        actions = command.executed_actions(out, self.robot)
        return actions if triplet.scan.ndim == 3 else actions[0]

    def reconstruct(self, triplet: Triplet) -> FloatArray:
        """What the autoencoder makes of the newest scan: ``(n,)`` or ``(N, n)`` float32, metres."""
        newest = self.inference.scans(named_inputs(triplet.batched()))
        return newest if triplet.scan.ndim == 3 else newest[0]
