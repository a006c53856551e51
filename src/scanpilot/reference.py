"""The reference system's learner, transcribed as plainly as PyTorch allows: the yardstick of `bench learner`.

SAC-AE (Yarats et al. 2019) in one dimension at the reference's sizes, one network, loss, backward pass and
optimiser after the other, as its published form has it. Nobody trains with it and nothing is shared with our
own agent, so that what one of them does faster can be measured. CAPS is off, as it is there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scanpilot.types import FloatArray

FRAMES, BEAMS = 3, 512
BATCH = 256
STATE = 6  # goal and speed
ACTIONS = 3
_FEATURE, _FILTERS, _LENGTH = 50, 32, 249


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(FRAMES, _FILTERS, 3, stride=2)])
        self.convs.extend(nn.Conv1d(_FILTERS, _FILTERS, 3) for _ in range(3))
        self.fc = nn.Linear(_FILTERS * _LENGTH, _FEATURE)
        self.norm = nn.LayerNorm(_FEATURE)

    def forward(self, scan: Tensor, detach: bool = False) -> Tensor:
        x = scan
        for conv in self.convs:
            x = torch.relu(conv(x))
        x = x.flatten(1)
        if detach:
            x = x.detach()
        return torch.tanh(self.norm(self.fc(x)))

    def tie(self, source: Encoder) -> None:
        """Share the convolutions of another."""
        for own, other in zip(self.convs, source.convs, strict=True):
            own.weight, own.bias = other.weight, other.bias


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(_FEATURE, _FILTERS * _LENGTH)
        self.deconvs = nn.ModuleList(nn.ConvTranspose1d(_FILTERS, _FILTERS, 3) for _ in range(3))
        self.deconvs.append(nn.ConvTranspose1d(_FILTERS, FRAMES, 3, stride=2, output_padding=1))

    def forward(self, feature: Tensor) -> Tensor:
        x = torch.relu(self.fc(feature)).view(-1, _FILTERS, _LENGTH)
        for deconv in self.deconvs[:-1]:
            x = torch.relu(deconv(x))
        out: Tensor = self.deconvs[-1](x)
        return out


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.trunk = _mlp(_FEATURE + STATE, 256, 2 * ACTIONS)

    def forward(self, scan: Tensor, state: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        """Sampled actions ``(B, 3)`` and their log probabilities ``(B, 1)``."""
        mean, log_std = self.trunk(torch.cat((self.encoder(scan, detach), state), 1)).chunk(2, 1)
        log_std = -10.0 + 6.0 * (torch.tanh(log_std) + 1.0)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + noise * log_std.exp())
        log_prob = (-0.5 * noise.pow(2) - log_std - 0.5 * np.log(2.0 * np.pi)).sum(-1, keepdim=True)
        return action, log_prob - torch.log(1.0 - action.pow(2) + 1e-6).sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.q1 = _mlp(_FEATURE + STATE + ACTIONS, 1024, 1)
        self.q2 = _mlp(_FEATURE + STATE + ACTIONS, 1024, 1)

    def forward(
        self, scan: Tensor, state: Tensor, action: Tensor, detach: bool = False
    ) -> tuple[Tensor, Tensor]:
        x = torch.cat((self.encoder(scan, detach), state, action), 1)
        return self.q1(x), self.q2(x)


class Replay:
    """20,000 transitions in numpy arrays, scans and next scans whole."""

    def __init__(self, rng: np.random.Generator, capacity: int = 20_000) -> None:
        self._rng, self._capacity = rng, capacity

        def made_up(*shape: int) -> FloatArray:
            return rng.standard_normal((capacity, *shape), dtype=np.float32)

        self._arrays = (
            made_up(FRAMES, BEAMS),
            made_up(STATE),
            made_up(ACTIONS),
            made_up(1),
            made_up(FRAMES, BEAMS),
            made_up(STATE),
            np.ones((capacity, 1), dtype=np.float32),
        )

    def sample(self) -> tuple[Tensor, ...]:
        picked = self._rng.integers(self._capacity, size=BATCH)
        return tuple(torch.as_tensor(array[picked]).float() for array in self._arrays)


class ReferenceLearner:
    """The reference's update, one term after the other."""

    def __init__(self) -> None:
        self.actor, self.critic, self.target, self.decoder = Actor(), Critic(), Critic(), Decoder()
        self.target.load_state_dict(self.critic.state_dict())
        self.actor.encoder.tie(self.critic.encoder)
        self.log_alpha = torch.tensor(np.log(0.1), dtype=torch.float32, requires_grad=True)
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self._alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=1e-4, betas=(0.5, 0.999))
        self._encoder_optimizer = torch.optim.Adam(self.critic.encoder.parameters(), lr=1e-3)
        self._decoder_optimizer = torch.optim.Adam(self.decoder.parameters(), lr=1e-3, weight_decay=1e-7)
        self.updates = 0

    def update(self, replay: Replay) -> None:
        scan, state, action, reward, next_scan, next_state, not_done = replay.sample()
        self._update_critic(scan, state, action, reward, next_scan, next_state, not_done)
        if self.updates % 2 == 0:
            self._update_actor(scan, state)
            self._follow(self.critic.q1, self.target.q1, 0.005)
            self._follow(self.critic.q2, self.target.q2, 0.005)
            self._follow(self.critic.encoder, self.target.encoder, 0.025)
        self._update_decoder(scan)
        self.updates += 1

    def _update_critic(
        self,
        scan: Tensor,
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        next_scan: Tensor,
        next_state: Tensor,
        not_done: Tensor,
    ) -> None:
        with torch.no_grad():
            next_action, log_prob = self.actor(next_scan, next_state)
            q1, q2 = self.target(next_scan, next_state, next_action)
            target = reward + not_done * 0.99 * (torch.min(q1, q2) - self.log_alpha.exp() * log_prob)
        q1, q2 = self.critic(scan, state, action)
        loss = functional.mse_loss(q1, target) + functional.mse_loss(q2, target)
        self._critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._critic_optimizer.step()

    def _update_actor(self, scan: Tensor, state: Tensor) -> None:
        action, log_prob = self.actor(scan, state, detach=True)
        q1, q2 = self.critic(scan, state, action, detach=True)
        loss = (self.log_alpha.exp().detach() * log_prob - torch.min(q1, q2)).mean()
        self._actor_optimizer.zero_grad()
        loss.backward()
        self._actor_optimizer.step()
        self._alpha_optimizer.zero_grad()
        (self.log_alpha.exp() * (-log_prob + 3.0).detach()).mean().backward()
        self._alpha_optimizer.step()

    def _update_decoder(self, scan: Tensor) -> None:
        feature = self.critic.encoder(scan)
        loss = functional.mse_loss(self.decoder(feature), scan)
        loss = loss + 1e-6 * (0.5 * feature.pow(2).sum(1)).mean()
        self._encoder_optimizer.zero_grad()
        self._decoder_optimizer.zero_grad()
        loss.backward()
        self._encoder_optimizer.step()
        self._decoder_optimizer.step()

    @staticmethod
    def _follow(source: nn.Module, target: nn.Module, tau: float) -> None:
        for parameter, follower in zip(source.parameters(), target.parameters(), strict=True):
            follower.data.copy_(tau * parameter.data + (1.0 - tau) * follower.data)
