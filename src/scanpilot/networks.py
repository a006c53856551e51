"""Encoder, decoder, actor and critics: shapes and forward passes, no losses, no optimisers.

All networks read metric triplets through `observation.encode_scan` and `encode_state`; ``B`` is
the batch, ``k`` the frames and ``n`` the beams of a scan, ``F`` the encoder's feature width, ``S``
that of the encoded state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.observation import STATE_FEATURES, ObservationSpec, encode_scan, encode_state

ACTIONS = 3
# Forward speed is squashed to [0, 1] by a sigmoid, the others to [-1, 1] by tanh.
FORWARD = 0


class PatchEncoder(nn.Module):
    """Four non-overlapping convolutions over a scan, then ``F`` features through LayerNorm and tanh."""

    STRIDES = (6, 3, 2, 1)

    def __init__(self, frames: int, beams: int, config: NetworkConfig) -> None:
        super().__init__()
        first, *later = self.STRIDES
        self._first = first
        self._padding = -beams % math.prod(self.STRIDES)
        self.length = (beams + self._padding) // math.prod(self.STRIDES)
        filters = config.filters
        self.layers = nn.ModuleList([nn.Linear(frames * first, filters)])
        self.layers.extend(nn.Linear(filters * stride, filters) for stride in later)
        self.head = nn.Linear(self.length * filters, config.feature)
        self.norm = nn.LayerNorm(config.feature)

    def forward(self, scan: Tensor) -> Tensor:
        """``(B, k, n)`` encoded scans to ``(B, F)`` features in (-1, 1)."""
        if self._padding:
            scan = functional.pad(scan, (0, self._padding), mode="replicate")
        batch, frames, beams = scan.shape
        x = scan.reshape(batch, frames, beams // self._first, self._first).transpose(1, 2).flatten(2)
        for layer, stride in zip(self.layers, (1, *self.STRIDES[1:]), strict=True):
            # Neighbouring positions lie side by side in memory: a strided convolution is a view + matmul.
            x = functional.relu(layer(x.reshape(batch, -1, stride * x.shape[2])))
        return torch.tanh(self.norm(self.head(x.reshape(batch, -1))))


class PatchDecoder(nn.Module):
    """Mirror of `PatchEncoder`."""

    def __init__(self, frames: int, beams: int, config: NetworkConfig) -> None:
        super().__init__()
        first, *later = PatchEncoder.STRIDES
        self._frames, self._beams, self._first = frames, beams, first
        self._filters = config.filters
        length = math.ceil(beams / math.prod(PatchEncoder.STRIDES))
        self.head = nn.Linear(config.feature, length * config.filters)
        self.layers = nn.ModuleList(
            nn.Linear(config.filters, config.filters * stride) for stride in reversed(later)
        )
        self.last = nn.Linear(config.filters, frames * first)

    def forward(self, feature: Tensor) -> Tensor:
        """``(B, F)`` features to ``(B, k, n)`` encoded scans."""
        batch = feature.shape[0]
        x = functional.relu(self.head(feature)).reshape(batch, -1, self._filters)
        for layer in self.layers:
            x = functional.relu(layer(x)).reshape(batch, -1, self._filters)
        patches: Tensor = self.last(x).reshape(batch, -1, self._frames, self._first)
        return patches.transpose(1, 2).reshape(batch, self._frames, -1)[..., : self._beams]


class OverlappingEncoder(nn.Module):
    """SAC-AE's convolutions (Yarats et al. 2019) in one dimension."""

    def __init__(self, frames: int, beams: int, config: NetworkConfig) -> None:
        super().__init__()
        filters = config.filters
        self.layers = nn.ModuleList([nn.Conv1d(frames, filters, 3, stride=2)])
        self.layers.extend(nn.Conv1d(filters, filters, 3) for _ in range(3))
        self.length = (beams - 3) // 2 + 1 - 6
        if self.length < 1:
            raise ValueError(f"overlapping convolutions need at least 15 beams, not {beams}")
        self.head = nn.Linear(self.length * filters, config.feature)
        self.norm = nn.LayerNorm(config.feature)

    def forward(self, scan: Tensor) -> Tensor:
        """``(B, k, n)`` encoded scans to ``(B, F)`` features in (-1, 1)."""
        x = scan
        for layer in self.layers:
            x = functional.relu(layer(x))
        return torch.tanh(self.norm(self.head(x.flatten(1))))


class OverlappingDecoder(nn.Module):
    """Mirror of `OverlappingEncoder`."""

    def __init__(self, frames: int, beams: int, config: NetworkConfig) -> None:
        super().__init__()
        self._filters, self._length = config.filters, (beams - 3) // 2 + 1 - 6
        self.head = nn.Linear(config.feature, self._length * config.filters)
        self.layers = nn.ModuleList(nn.ConvTranspose1d(config.filters, config.filters, 3) for _ in range(3))
        # A stride of 2 forgets whether the number of beams was odd.
        self.last = nn.ConvTranspose1d(config.filters, frames, 3, stride=2, output_padding=(beams - 3) % 2)

    def forward(self, feature: Tensor) -> Tensor:
        """``(B, F)`` features to ``(B, k, n)`` encoded scans."""
        x = functional.relu(self.head(feature)).reshape(-1, self._filters, self._length)
        for layer in self.layers:
            x = functional.relu(layer(x))
        out: Tensor = self.last(x)
        return out


def make_encoder(observation: ObservationSpec, config: NetworkConfig) -> PatchEncoder | OverlappingEncoder:
    """The encoder that ``config`` names."""
    kind = PatchEncoder if config.convolution == "patches" else OverlappingEncoder
    return kind(observation.frames, observation.beams, config)


def make_decoder(observation: ObservationSpec, config: NetworkConfig) -> PatchDecoder | OverlappingDecoder:
    """The decoder that mirrors `make_encoder`."""
    kind = PatchDecoder if config.convolution == "patches" else OverlappingDecoder
    return kind(observation.frames, observation.beams, config)


class Actor(nn.Module):
    """Features and state to a Gaussian over unsquashed actions."""

    def __init__(self, config: NetworkConfig, state_features: int = STATE_FEATURES) -> None:
        super().__init__()
        self._low, self._high = config.log_std_min, config.log_std_max
        widths = (config.feature + state_features, *config.actor_hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.out = nn.Linear(widths[-1], 2 * ACTIONS)

    def forward(self, feature: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, F)`` and ``(B, S)`` to mean and log standard deviation, ``(B, 3)`` each."""
        x = torch.cat((feature, state), -1)
        for layer in self.hidden:
            x = functional.relu(layer(x))
        mean, log_std = self.out(x).chunk(2, -1)
        # Spinningup's and SAC-AE's smooth bound: a clamp would stop the gradient.
        log_std = self._low + 0.5 * (self._high - self._low) * (torch.tanh(log_std) + 1.0)
        return mean, log_std


class Critics(nn.Module):
    """Q functions side by side in one batched matrix product per layer."""

    def __init__(self, config: NetworkConfig, state_features: int = STATE_FEATURES, count: int = 2) -> None:
        super().__init__()
        widths = (config.feature + state_features + ACTIONS, *config.critic_hidden, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(widths):
            # nn.Linear's own initialisation, drawn for each critic apart.
            bound = 1.0 / math.sqrt(fan_in)
            self.weights.append(nn.Parameter(torch.empty(count, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(count, 1, fan_out).uniform_(-bound, bound)))
        self._normed = config.critic_layer_norm
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        if self._normed:
            self.scales.extend(nn.Parameter(torch.ones(count, 1, width)) for width in widths[1:-1])
            self.shifts.extend(nn.Parameter(torch.zeros(count, 1, width)) for width in widths[1:-1])

    def forward(self, feature: Tensor, state: Tensor, action: Tensor) -> Tensor:
        """``(B, F)``, ``(B, S)`` and ``(B, 3)`` to values ``(count, B)``."""
        x = torch.cat((feature, state, action), -1).expand(self.weights[0].shape[0], -1, -1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if i == last:
                break
            if self._normed:
                x = torch.addcmul(self.shifts[i], functional.layer_norm(x, x.shape[-1:]), self.scales[i])
            x = functional.relu(x)
        return x.squeeze(-1)


def squash(unsquashed: Tensor) -> Tensor:
    """``(..., 3)`` real numbers to actions: sigmoid for the forward speed, tanh for the others."""
    forward, others = unsquashed[..., :1], unsquashed[..., 1:]
    return torch.cat((torch.sigmoid(forward), torch.tanh(others)), -1)


def log_prob(unsquashed: Tensor, mean: Tensor, log_std: Tensor, active: Tensor) -> Tensor:
    """Log density of ``squash(unsquashed)`` under the squashed Gaussian, ``(B,)``.

    By the change of variables each component loses ``log |da/du|``: for the sigmoid
    ``a (1 - a)``, whose logarithm is ``-softplus(u) - softplus(-u)``; for tanh ``1 - a^2``,
    ``2 (log 2 - u - softplus(-2u))``. Components that do not move the robot
    (``active`` 0) are no choice and count nothing.
    """
    noise = (unsquashed - mean) * torch.exp(-log_std)
    gaussian = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    u, v = unsquashed[..., :1], unsquashed[..., 1:]
    jacobian = torch.cat(
        (
            -functional.softplus(u) - functional.softplus(-u),
            2.0 * (math.log(2.0) - v - functional.softplus(-2.0 * v)),
        ),
        -1,
    )
    return ((gaussian - jacobian) * active).sum(-1)


class PolicyNetwork(nn.Module):
    """Encoder and actor as one module: metric triplets to mean actions."""

    def __init__(self, observation: ObservationSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.observation = observation
        self.encoder = make_encoder(observation, config)
        self.actor = Actor(config, observation.state_features)

    def forward(self, scan: Tensor, goal: Tensor, speed: Tensor, guidance: Tensor | None = None) -> Tensor:
        """``(B, k, n)``, ``(B, 3)``, ``(B, 3)`` in metres, radians, m/s, rad/s to actions ``(B, 3)``.

        ``guidance`` ``(B, 3)`` is for observations that have it.
        """
        mean, _ = self.distribution(scan, goal, speed, guidance)
        return squash(mean)

    def distribution(
        self, scan: Tensor, goal: Tensor, speed: Tensor, guidance: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the unsquashed actions, ``(B, 3)`` each."""
        feature = self.encoder(encode_scan(scan, torch))
        state = encode_state(goal, speed, self.observation, torch, guidance)
        mean, log_std = self.actor(feature, state)
        return mean, log_std


def new_networks(manifest: PolicyManifest) -> tuple[PolicyNetwork, nn.Module]:
    """Untrained networks of the sizes that a manifest states."""
    network = PolicyNetwork(manifest.observation, manifest.network)
    return network, make_decoder(manifest.observation, manifest.network)


def parameters_of(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """All parameters of several modules, in order."""
    return [p for module in modules for p in module.parameters()]
