"""Asynchronous advantage actor-critic (Mnih et al. 2016), which no kept library has.

Workers are processes. Each drives its own environments with a copy of the shared networks, takes the
gradient of its rollout there, and applies it to the shared weights, without a lock, through RMSProp whose
running averages are shared as well. Advantages are GAE (Schulman et al. 2016). With more than one worker a
run cannot be repeated exactly: who comes first is the operating system's choice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from scanpilot.baselines.run import BaselineConfig, Description, Log
from scanpilot.baselines.tasks import Array, Task, make

_LEARNING_RATE, _ROLLOUT, _LAMBDA, _ENTROPY = 7e-4, 20, 0.95, 0.01
_VALUE, _LARGEST_GRADIENT = 0.5, 0.5
_DECAY, _EPSILON = 0.99, 1e-5


class ActorCritic(nn.Module):
    """Policy and value; images pass the paper's two convolutions first.

    Args:
        seen: observations, vectors or ``(C, H, W)`` images.
        done: actions, vectors in [-1, 1] (a normal distribution) or whole numbers (a categorical one).
        hidden: units of each layer.
    """

    def __init__(self, seen: spaces.Box, done: spaces.Box | spaces.Discrete, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self._image = len(seen.shape) == 3
        self._discrete = isinstance(done, spaces.Discrete)
        outputs = int(done.n) if isinstance(done, spaces.Discrete) else int(np.prod(done.shape))
        self.features: nn.Module = _convolutions(seen.shape) if self._image else nn.Flatten()
        size = 256 if self._image else int(np.prod(seen.shape))
        layers = () if self._image else hidden
        self.actor = _layers(size, layers, outputs, 0.01)
        self.critic = _layers(size, layers, 1, 1.0)
        self.log_std = nn.Parameter(torch.full((0 if self._discrete else outputs,), -0.5))

    def forward(self, observations: Tensor) -> tuple[Distribution, Tensor]:
        """Distribution of actions and ``(N,)`` values for ``(N, ...)`` observations."""
        seen = observations.float() / 255.0 if self._image else observations.float()
        features = self.features(seen)
        out = self.actor(features)
        values = self.critic(features).squeeze(-1)
        if self._discrete:
            return Categorical(logits=out), values
        return Independent(Normal(out, self.log_std.exp().expand_as(out)), 1), values

    @torch.inference_mode()
    def choose(self, observations: Array) -> Array:
        """The likeliest action of each of ``(N, ...)`` observations."""
        distribution, _ = self(torch.from_numpy(np.ascontiguousarray(observations)))
        if isinstance(distribution, Categorical):
            return np.asarray(distribution.logits.argmax(-1).numpy())
        return np.asarray(distribution.mean.clamp(-1.0, 1.0).numpy())


def _layers(size: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_orthogonal(nn.Linear(size, width), math.sqrt(2.0)), nn.Tanh()]
        size = width
    return nn.Sequential(*layers, _orthogonal(nn.Linear(size, outputs), gain))


def _convolutions(shape: tuple[int, ...]) -> nn.Sequential:
    stack = nn.Sequential(
        _orthogonal(nn.Conv2d(shape[0], 16, 8, 4), math.sqrt(2.0)),
        nn.ReLU(),
        _orthogonal(nn.Conv2d(16, 32, 4, 2), math.sqrt(2.0)),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        flat = stack(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*stack, _orthogonal(nn.Linear(flat, 256), math.sqrt(2.0)), nn.ReLU())


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates ``(T, N)``.

    ``A_t = delta_t + gamma lam A_{t+1}``, ``delta_t = r_t + gamma V(s'_t) - V(s_t)``; the sum stops where an
    episode ended, and only where it terminated is nothing to come worth 0.

    Args:
        rewards, values: of each step.
        next_values: of the state that each step led to, the last one of an episode included.
        terminated: ended without bootstrap.
        ended: terminated or truncated.
        gamma, lam: discount and GAE's lambda.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    found = torch.zeros_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * lam * (1.0 - ended[t]) * running
        found[t] = running
    return found


class SharedRMSProp:
    """RMSProp without centring on weights and running averages that all processes share, without a lock."""

    def __init__(self, networks: nn.Module, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self.squares = [torch.zeros_like(p) for p in networks.parameters()]
        for square in self.squares:
            square.share_memory_()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, networks: nn.Module, gradients: list[Tensor], rate: float = 1.0) -> None:
        """Apply gradients to the shared networks; ``rate`` is a factor on the learning rate."""
        for parameter, square, gradient in zip(networks.parameters(), self.squares, gradients, strict=True):
            square.mul_(_DECAY).addcmul_(gradient, gradient, value=1.0 - _DECAY)
            parameter.addcdiv_(gradient, (square + _EPSILON).sqrt(), value=-rate * self._learning_rate)


@dataclass
class _Shared:
    """What workers have in common."""

    networks: ActorCritic
    optimiser: SharedRMSProp
    steps: Any
    episodes: Any


def train(description: Description, log_to: Any) -> tuple[nn.Module, int, float]:
    """Train with as many processes as the configuration says; returns networks, steps and seconds.

    Raises:
        RuntimeError: a worker died.
    """
    config = description.config
    torch.manual_seed(description.seed)
    task = make(description.task, config.envs or 8)
    networks = ActorCritic(task.observation_space, task.action_space, config.hidden)
    task.close()
    networks.share_memory()
    context = multiprocessing.get_context("spawn")
    shared = _Shared(
        networks,
        SharedRMSProp(networks, config.learning_rate or _LEARNING_RATE),
        context.Value("q", 0),
        context.Queue(),
    )
    log: Log = log_to(1)
    workers = [
        context.Process(target=_work, args=(description, worker, shared), daemon=True)
        for worker in range(config.workers)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        _note(shared, log)
        if any(worker.exitcode not in (None, 0) for worker in workers):
            for worker in workers:
                worker.terminate()
            raise RuntimeError("a worker of A3C died, see above")
        time.sleep(0.05)
    for worker in workers:
        worker.join()
    # Whoever ended has sent all it had to tell.
    _note(shared, log)
    if any(worker.exitcode != 0 for worker in workers):
        raise RuntimeError("a worker of A3C died, see above")
    return networks, log.steps, log.close()


def _note(shared: _Shared, log: Log) -> None:
    while not shared.episodes.empty():
        log.episode(*shared.episodes.get())
    log.steps = int(shared.steps.value)
    log.tell()


def _work(description: Description, worker: int, shared: _Shared) -> None:
    """One worker: roll out, learn, until the steps of all are used up."""
    config = description.config
    torch.set_num_threads(config.threads)
    seed = int(np.random.SeedSequence([description.seed, worker]).generate_state(1)[0])
    torch.manual_seed(seed)
    task = make(description.task, config.envs or 8)
    own = ActorCritic(task.observation_space, task.action_space, config.hidden)
    observations, returns = task.reset(seed), np.zeros(task.count)
    while (done := shared.steps.value) < description.steps:
        own.load_state_dict(shared.networks.state_dict())
        rollout = _Rollout()
        for _ in range(config.rollout or _ROLLOUT):
            observations = _roll(own, task, observations, rollout, returns, shared)
        gradients = _gradients(own, rollout, observations, config)
        # The paper lets the rate fall to nothing.
        shared.optimiser.step(shared.networks, gradients, max(0.0, 1.0 - done / description.steps))
        with shared.steps.get_lock():
            shared.steps.value += len(rollout.rewards) * task.count
    task.close()


class _Rollout:
    """Lists of what happened, a row a step."""

    def __init__(self) -> None:
        self.observations: list[Array] = []
        self.actions: list[Tensor] = []
        self.rewards: list[Array] = []
        self.last: list[Array] = []
        self.terminated: list[Array] = []
        self.ended: list[Array] = []


def _roll(
    own: ActorCritic, task: Task, observations: Array, rollout: _Rollout, returns: Array, shared: _Shared
) -> Array:
    with torch.inference_mode():
        distribution, _ = own(torch.from_numpy(np.ascontiguousarray(observations)))
        actions = distribution.sample()
    moved = task.step(actions.numpy())
    rollout.observations.append(observations)
    rollout.actions.append(actions.clone())
    rollout.rewards.append(moved.rewards)
    rollout.last.append(moved.last)
    rollout.terminated.append(moved.terminated)
    rollout.ended.append(moved.terminated | moved.truncated)
    returns += moved.rewards
    for index in np.flatnonzero(rollout.ended[-1]):
        shared.episodes.put((float(returns[index]), bool(moved.succeeded[index])))
        returns[index] = 0.0
    return moved.observations


def _gradients(
    own: ActorCritic, rollout: _Rollout, observations: Array, config: BaselineConfig
) -> list[Tensor]:
    """Of ``-log pi A - entropy H + value (R - V)^2``, clipped by their norm."""
    lam = _LAMBDA if config.gae_lambda is None else config.gae_lambda
    weight = _ENTROPY if config.entropy is None else config.entropy
    steps, count = len(rollout.rewards), len(observations)

    def flat(rows: list[Array]) -> Tensor:
        return torch.from_numpy(np.concatenate(rows))

    def grid(rows: list[Array]) -> Tensor:
        return torch.from_numpy(np.stack(rows).astype(np.float32))

    distribution, values = own(flat(rollout.observations))
    values = values.reshape(steps, count)
    with torch.no_grad():
        _, after = own(flat(rollout.last))
        gained = advantages(
            config.reward_scale * grid(rollout.rewards),
            values,
            after.reshape(steps, count),
            grid(rollout.terminated),
            grid(rollout.ended),
            config.gamma,
            lam,
        )
        targets = gained + values
    log_probability = distribution.log_prob(torch.cat(rollout.actions)).reshape(steps, count)
    loss = (
        -(log_probability * gained).mean()
        - weight * distribution.entropy().mean()
        + _VALUE * (targets - values).square().mean()
    )
    own.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(own.parameters(), _LARGEST_GRADIENT)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in own.parameters()]
