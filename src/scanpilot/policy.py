"""A trained policy for inference: triplets in, clipped actions out. Reads no files (see `checkpoint`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scanpilot import command
from scanpilot.networks import Actor, NetworkConfig, make_decoder, make_encoder, squash
from scanpilot.observation import ObservationSpec, decode_scan, encode_scan, encode_state
from scanpilot.robot import RobotSpec
from scanpilot.types import FloatArray, Triplet


class PolicyNetwork(nn.Module):
    """Encoder and actor as one module: metric triplets to mean actions."""

    def __init__(self, observation: ObservationSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.observation = observation
        self.encoder = make_encoder(observation, config)
        self.actor = Actor(config)

    def forward(self, scan: Tensor, goal: Tensor, speed: Tensor) -> Tensor:
        """``(B, k, n)``, ``(B, 3)``, ``(B, 3)`` in metres, radians, m/s, rad/s to actions ``(B, 3)``."""
        mean, _ = self.distribution(scan, goal, speed)
        return squash(mean)

    def distribution(self, scan: Tensor, goal: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the unsquashed actions, ``(B, 3)`` each."""
        feature = self.encoder(encode_scan(scan, torch))
        mean, log_std = self.actor(feature, encode_state(goal, speed, self.observation, torch))
        return mean, log_std


@dataclass(frozen=True)
class PolicyManifest:
    """What a policy is, apart from its weights; travels in ``policy.json``.

    Attributes:
        name: for people.
        robot: the robot it was trained for.
        observation: what it sees.
        network: sizes of its networks.
        control_period: seconds between two actions.
        training: how it was trained: command, seed, steps, minutes, ...
        evaluation: how well it drove, with episode counts and intervals.
    """

    name: str
    robot: RobotSpec
    observation: ObservationSpec
    network: NetworkConfig
    control_period: float
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)


class Policy:
    """Acts by the mean of the trained distribution.

    Args:
        manifest: what the policy is.
        network: encoder and actor.
        decoder: ``(B, F)`` features to encoded scans.
        identity: short content hash that names these weights.
    """

    def __init__(
        self, manifest: PolicyManifest, network: PolicyNetwork, decoder: nn.Module, identity: str
    ) -> None:
        self.manifest = manifest
        self.identity = identity
        self._network = network.eval().requires_grad_(False)
        self._decoder = decoder.eval().requires_grad_(False)

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

    @property
    def network(self) -> PolicyNetwork:
        """Encoder and actor."""
        return self._network

    @property
    def decoder(self) -> nn.Module:
        """The autoencoder's other half."""
        return self._decoder

    @torch.inference_mode()
    def act(self, triplet: Triplet) -> FloatArray:
        """Executable action of one robot ``(3,)`` or of a batch ``(N, 3)``, float32, clipped.

        Raises:
            scanpilot.types.InvalidInput: the network's output is not finite.
        """
        batch = triplet.batched()
        out = self._network(
            *(torch.from_numpy(np.ascontiguousarray(a)) for a in (batch.scan, batch.goal, batch.speed))
        )
        actions = command.executed_actions(out.numpy(), self.robot)
        return actions if triplet.scan.ndim == 3 else actions[0]

    @torch.inference_mode()
    def reconstruct(self, triplet: Triplet) -> FloatArray:
        """What the autoencoder makes of the newest scan: ``(n,)`` or ``(N, n)`` float32, metres."""
        batch = triplet.batched()
        feature = self._network.encoder(
            encode_scan(torch.from_numpy(np.ascontiguousarray(batch.scan)), torch)
        )
        decoded = decode_scan(self._decoder(feature), self.observation, torch)
        newest: FloatArray = decoded[:, -1].numpy()
        return newest if triplet.scan.ndim == 3 else newest[0]


def new_networks(manifest: PolicyManifest) -> tuple[PolicyNetwork, nn.Module]:
    """Untrained networks of the sizes that a manifest states."""
    network = PolicyNetwork(manifest.observation, manifest.network)
    return network, make_decoder(manifest.observation, manifest.network)
