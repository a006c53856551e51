"""The agent: Soft Actor-Critic with an autoencoder on its scan encoder and smooth actions.

* SAC: twin critics, learned temperature (Haarnoja et al. 2018, arXiv 1812.05905).
* AE: the encoder learns from the critic loss and from reconstruction; the actor reads its
  features detached (Yarats et al. 2019, arXiv 1910.01741).
* CAPS: two penalties on the actor's mean action (Mysore et al. 2021, arXiv 2012.06644):
  between consecutive states, and between a state and its perturbed, reconstructed neighbour.

`SacAeCaps.update` reads top to bottom; every term of the losses is a function that tests pin by
hand. The agent never sees an environment: it gets shapes and batches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scanpilot.manifest import NetworkConfig
from scanpilot.networks import (
    Critics,
    PolicyNetwork,
    log_prob,
    make_decoder,
    make_encoder,
    parameters_of,
    squash,
)
from scanpilot.observation import (
    ObservationSpec,
    decode_scan,
    encode_scan,
    encode_state,
    with_guidance,
)
from scanpilot.replay_buffer import Batch, States
from scanpilot.types import BoolArray, FloatArray, Triplet


@dataclass(frozen=True)
class AgentConfig:
    """The algorithm's numbers; names as in SAC-AE and CAPS.

    Attributes:
        network: sizes.
        gamma: discount per step.
        n_step: length of the returns in the critics' targets.
        batch_size: transitions per update.
        learning_rate: of actor, critics, encoder and decoder.
        learning_rate_end: the rate decays linearly to this fraction of itself over the
            second half of training.
        temperature_learning_rate, temperature_beta1: of log_alpha's optimiser.
        initial_temperature: alpha at the start.
        target_entropy: per component that moves the robot; the target is its sum.
        critic_tau, encoder_tau: speed of the target networks.
        actor_interval: updates of the critics per update of actor, temperature and targets.
        latent_lambda: weight of the features' squared norm in the autoencoder's loss.
        decoder_weight_decay: of the decoder's weights.
        reconstruction: weight of the autoencoder's loss; 0 turns the autoencoder's
            training off.
        caps_temporal, caps_spatial: weights lam_T and lam_S.
        caps_sigma: deviation of the neighbour's goal (m, m, rad) and speed (m/s, m/s, rad/s).
        caps_on: whether the penalties compare squashed or unsquashed means.
        weight_average: decay per actor update of the averaged weights that act in
            evaluation and are published; 0 publishes the learner's own.
        max_gradient_norm: longer gradients are cut to this length.
        mirror: see one half of each batch as if left were right, which a robot and its
            field of view that are symmetric allow; doubles what each transition teaches.
    """

    network: NetworkConfig = field(default_factory=NetworkConfig)
    gamma: float = 0.99
    n_step: int = 3
    batch_size: int = 128
    learning_rate: float = 1e-3
    learning_rate_end: float = 0.1
    temperature_learning_rate: float = 5e-4
    temperature_beta1: float = 0.5
    initial_temperature: float = 0.1
    target_entropy: float = -1.0
    critic_tau: float = 0.005
    encoder_tau: float = 0.025
    actor_interval: int = 2
    latent_lambda: float = 1e-6
    decoder_weight_decay: float = 1e-7
    reconstruction: float = 1.0
    caps_temporal: float = 0.5
    caps_spatial: float = 0.5
    caps_sigma: float = 0.1
    caps_on: Literal["squashed", "unsquashed"] = "squashed"
    weight_average: float = 0.998
    max_gradient_norm: float = 20.0
    mirror: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma < 1.0 or self.batch_size < 1 or self.n_step < 1 or self.actor_interval < 1:
            raise ValueError("gamma must be in (0, 1); batch_size, n_step and actor_interval at least 1")
        if not (0.0 < self.critic_tau <= 1.0 and 0.0 < self.encoder_tau <= 1.0):
            raise ValueError("critic_tau and encoder_tau must be in (0, 1]")
        if not 0.0 <= self.weight_average < 1.0 or not 0.0 < self.learning_rate_end <= 1.0:
            raise ValueError("weight_average must be in [0, 1) and learning_rate_end in (0, 1]")
        if min(self.caps_temporal, self.caps_spatial, self.caps_sigma, self.reconstruction) < 0.0:
            raise ValueError("caps and reconstruction weights must not be negative")


def soft_target(
    returns: Tensor, discounts: Tensor, target_values: Tensor, log_probs: Tensor, alpha: Tensor
) -> Tensor:
    """Critics' target ``R + discount * (min_i Q_i(s', a') - alpha log pi(a'|s'))``, ``(B,)``.

    ``discounts`` is gamma^h, and 0 after a terminal state; a truncated episode bootstraps.
    ``target_values`` is ``(2, B)``.
    """
    return returns + discounts * (target_values.amin(0) - alpha * log_probs)


def autoencoder_loss(decoded: Tensor, encoded_scan: Tensor, feature: Tensor, latent_lambda: float) -> Tensor:
    """Mean squared error in the network's own scaling plus ``lambda * |z|^2 / 2``."""
    return functional.mse_loss(decoded, encoded_scan) + latent_lambda * 0.5 * feature.square().sum(-1).mean()


def action_distance(a: Tensor, b: Tensor, active: Tensor) -> Tensor:
    """CAPS' D: mean over the batch of the squared Euclidean distance over the active components."""
    return ((a - b).square() * active).sum(-1).mean()


def temperature_loss(log_alpha: Tensor, log_probs: Tensor, target_entropy: float) -> Tensor:
    """``-log_alpha * (log pi + target_entropy)``: raises alpha while entropy is below its target."""
    return -(log_alpha * (log_probs.detach() + target_entropy)).mean()


def mirrored(batch: Batch, count: int) -> Batch:
    """The batch with its first ``count`` transitions seen in a mirror along the x axis of ``base_link``."""

    def sign(values: Tensor, signs: tuple[float, float, float]) -> Tensor:
        factor = torch.ones_like(values)
        factor[:count] *= torch.tensor(signs, device=values.device)
        return values * factor

    def states(original: States) -> States:
        return States(
            torch.cat((original.scan[:count].flip(-1), original.scan[count:])),
            sign(original.goal, (1.0, -1.0, -1.0)),
            sign(original.speed, (1.0, -1.0, -1.0)),
            # Cosine, sine, excess.
            None if original.guidance is None else sign(original.guidance, (1.0, -1.0, 1.0)),
        )

    return dataclasses.replace(
        batch,
        states=states(batch.states),
        actions=sign(batch.actions, (1.0, -1.0, -1.0)),
        bootstrap=states(batch.bootstrap),
        successors=states(batch.successors),
    )


class SacAeCaps:
    """SAC-AE-CAPS.

    Args:
        observation: shapes and scaling of states.
        active: (3,) which components of an action move the robot.
        config: the algorithm's numbers.
        seed: of weights, exploration and the neighbours' noise.
        device: where it all lies.
        turn_per_forward: largest yaw-rate action per unit of forward action, as `command` says it; finite
            for a car.
    """

    def __init__(
        self,
        observation: ObservationSpec,
        active: BoolArray,
        config: AgentConfig,
        seed: int,
        device: str = "cpu",
        turn_per_forward: float = math.inf,
    ) -> None:
        if config.mirror and abs(observation.angle_min + observation.angle_max) > 1e-6:
            raise ValueError(
                f"mirror: the field of view, {observation.angle_min:.3f}..{observation.angle_max:.3f} rad, "
                "is not symmetric"
            )
        self.config = config
        self.observation = observation
        self._device = torch.device(device)
        self._turn_per_forward = turn_per_forward
        self._active = torch.tensor(active, dtype=torch.float32, device=self._device)
        self.target_entropy = config.target_entropy * float(self._active.sum())
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = PolicyNetwork(observation, config.network).to(self._device)
            self.decoder = make_decoder(observation, config.network).to(self._device)
            self.critics = Critics(config.network, observation.state_features).to(self._device)
            self.target_encoder = make_encoder(observation, config.network).to(self._device)
            self.target_critics = Critics(config.network, observation.state_features).to(self._device)
            self.average_network = PolicyNetwork(observation, config.network).to(self._device)
            self.average_decoder = make_decoder(observation, config.network).to(self._device)
        _copy(self.network.encoder, self.target_encoder)
        _copy(self.critics, self.target_critics)
        _copy(self.network, self.average_network)
        _copy(self.decoder, self.average_decoder)
        for module in (self.target_encoder, self.target_critics, self.average_network, self.average_decoder):
            module.requires_grad_(False)
        self.log_alpha = torch.tensor(
            float(np.log(config.initial_temperature)), device=self._device, requires_grad=True
        )
        self.updates = 0
        self.skipped = 0
        groups: list[dict[str, Any]] = [
            {"params": parameters_of([self.network.encoder, self.critics])},
            {"params": parameters_of([self.decoder]), "weight_decay": config.decoder_weight_decay},
        ]
        self._critic_optimizer = torch.optim.Adam(groups, lr=config.learning_rate, fused=True)
        self._actor_optimizer = torch.optim.Adam(
            self.network.actor.parameters(), lr=config.learning_rate, fused=True
        )
        self._temperature_optimizer = torch.optim.Adam(
            [self.log_alpha], lr=config.temperature_learning_rate, betas=(config.temperature_beta1, 0.999)
        )
        self._critic_parameters = parameters_of([self.network.encoder, self.critics, self.decoder])
        self._actor_parameters = parameters_of([self.network.actor])

    @property
    def alpha(self) -> Tensor:
        """The temperature."""
        return self.log_alpha.detach().exp()

    @torch.inference_mode()
    def explore(self, triplets: Triplet) -> FloatArray:
        """Actions ``(N, 3)`` sampled from the policy; a robot that sees what is no number stands."""
        mean, log_std = self.network.distribution(*self._tensors(triplets))
        actions: FloatArray = squash(mean + log_std.exp() * self._noise(mean)).cpu().numpy()
        actions[~np.isfinite(actions).all(1)] = 0.0
        return actions

    @torch.inference_mode()
    def act(self, triplets: Triplet) -> FloatArray:
        """Mean actions ``(N, 3)`` of the averaged weights: what `Policy.act` would give."""
        actions: FloatArray = self.average_network(*self._tensors(triplets)).cpu().numpy()
        return actions

    @torch.inference_mode()
    def reconstruct(self, triplets: Triplet) -> FloatArray:
        """What the averaged autoencoder makes of the newest scans, ``(N, n)`` metres."""
        scan = self._tensors(triplets)[0]
        decoded = self.average_decoder(self.average_network.encoder(encode_scan(scan, torch)))
        newest: FloatArray = decode_scan(decoded, self.observation, torch)[:, -1].cpu().numpy()
        return newest

    def set_progress(self, fraction: float) -> None:
        """Tell how much of the training is done, 0 to 1: sets the learning rate."""
        late = min(max(2.0 * fraction - 1.0, 0.0), 1.0)
        rate = self.config.learning_rate * (1.0 + (self.config.learning_rate_end - 1.0) * late)
        for optimizer in (self._critic_optimizer, self._actor_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update of the critics and the autoencoder; every ``actor_interval``-th also of the rest.

        Returns:
            Losses and what explains them, as detached scalar tensors.
        """
        config = self.config
        if config.mirror:
            batch = mirrored(batch, len(batch.returns) // 2)
        with torch.no_grad():
            target = self._target(batch)
            state = self._state(batch.states)
            pixels = encode_scan(batch.states.scan, torch)

        # Critics and autoencoder share one encoder pass, one backward pass and one optimiser.
        feature = self.network.encoder(pixels)
        values = self.critics(feature, state, batch.actions)
        critic_loss = (values - target).square().mean(1).sum()
        decoded = self.decoder(feature)
        reconstruction_loss = autoencoder_loss(decoded, pixels, feature, config.latent_lambda)
        losses = {
            "losses/critic": critic_loss.detach(),
            "losses/autoencoder": reconstruction_loss.detach(),
            "values/q": values.detach().mean(),
        }

        # The actor's loss is taken at the same parameters, before either optimiser moves them.
        actor_turn = self.updates % config.actor_interval == 0
        if actor_turn:
            losses.update(self._actor_step(batch, feature.detach(), decoded.detach(), state))
            losses["values/feature_spread"] = feature.detach().std(0).mean()
        loss = critic_loss
        # At weight 0 the decoder must get no gradient, not one of zeros: Adam would turn its
        # weight decay, however small, into full steps.
        if config.reconstruction:
            loss = loss + config.reconstruction * reconstruction_loss
        self._step(self._critic_optimizer, loss, self._critic_parameters)
        if actor_turn:
            self._follow()
        self.updates += 1
        return losses

    def _target(self, batch: Batch) -> Tensor:
        states = batch.bootstrap
        pixels, state = encode_scan(states.scan, torch), self._state(states)
        mean, log_std = self.network.actor(self.network.encoder(pixels), state)
        unsquashed = mean + log_std.exp() * self._noise(mean)
        values = self.target_critics(self.target_encoder(pixels), state, self._executed(squash(unsquashed)))
        log_probs = log_prob(unsquashed, mean, log_std, self._active)
        return soft_target(batch.returns, batch.discounts, values, log_probs, self.alpha)

    def _actor_step(self, batch: Batch, feature: Tensor, decoded: Tensor, state: Tensor) -> dict[str, Tensor]:
        config = self.config
        mean, log_std = self.network.actor(feature, state)
        unsquashed = mean + log_std.exp() * self._noise(mean)
        log_probs = log_prob(unsquashed, mean, log_std, self._active)
        self.critics.requires_grad_(False)
        values = self.critics(feature, state, self._executed(squash(unsquashed)))
        self.critics.requires_grad_(True)
        sac_loss = (self.alpha * log_probs - values.amin(0)).mean()
        temporal = self._temporal(batch, mean) if config.caps_temporal else torch.zeros_like(sac_loss)
        spatial = self._spatial(batch, mean, decoded) if config.caps_spatial else torch.zeros_like(sac_loss)
        loss = sac_loss + config.caps_temporal * temporal + config.caps_spatial * spatial
        if self._step(self._actor_optimizer, loss, self._actor_parameters):
            self._step(
                self._temperature_optimizer,
                temperature_loss(self.log_alpha, log_probs, self.target_entropy),
                [self.log_alpha],
            )
        return {
            "losses/actor": sac_loss.detach(),
            "losses/caps_temporal": temporal.detach(),
            "losses/caps_spatial": spatial.detach(),
            "values/entropy": -log_probs.detach().mean(),
            "values/alpha": self.alpha,
        }

    def _temporal(self, batch: Batch, mean: Tensor) -> Tensor:
        """CAPS: consecutive states, the true one-step successor also with n-step targets."""
        after = batch.successors
        with torch.no_grad():
            feature = self.network.encoder(encode_scan(after.scan, torch))
        next_mean, _ = self.network.actor(feature, self._state(after))
        return self._distance(mean, next_mean)

    def _spatial(self, batch: Batch, mean: Tensor, decoded: Tensor) -> Tensor:
        """CAPS: a neighbour whose scan is the autoencoder's view of it, goal and speed perturbed."""
        states = batch.states
        sigma = self.config.caps_sigma
        with torch.no_grad():
            # Clipped in metres, after undoing the scaling.
            scan = decode_scan(decoded, self.observation, torch)
            feature = self.network.encoder(encode_scan(scan, torch))
            goal = states.goal + sigma * self._noise(states.goal)
            speed = states.speed + sigma * self._noise(states.speed)
            state = encode_state(goal, speed, self.observation, torch, states.guidance)
        near_mean, _ = self.network.actor(feature, state)
        return self._distance(mean, near_mean)

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        if self.config.caps_on == "squashed":
            a, b = squash(a), squash(b)
        return action_distance(a, b, self._active)

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Any]) -> bool:
        """Backward and step, unless a gradient is not finite; then nothing moves and it is counted."""
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_gradient_norm)
        if not torch.isfinite(norm):
            self.skipped += 1
            return False
        optimizer.step()
        return True

    def _follow(self) -> None:
        """Move the targets, by two speeds, and the averaged weights."""
        config = self.config
        _approach(self.critics, self.target_critics, config.critic_tau)
        _approach(self.network.encoder, self.target_encoder, config.encoder_tau)
        # Early on the average would remember the initial weights: a growing window forgets them.
        count = self.updates // config.actor_interval + 1
        decay = min(config.weight_average, count / (count + 10.0)) if config.weight_average else 0.0
        _approach(self.network, self.average_network, 1.0 - decay)
        _approach(self.decoder, self.average_decoder, 1.0 - decay)

    def _state(self, states: States) -> Tensor:
        encoded: Tensor = encode_state(states.goal, states.speed, self.observation, torch, states.guidance)
        return encoded

    def _executed(self, actions: Tensor) -> Tensor:
        """What the robot does of these, as it is stored and judged.

        What does not move it is 0, and a car turns no tighter than it can. Critics only ever see such
        actions: what they would make up about others must lead nobody.
        """
        actions = actions * self._active
        if math.isinf(self._turn_per_forward):
            return actions
        bound = actions[..., :1] * self._turn_per_forward
        turn = torch.minimum(torch.maximum(actions[..., 2:], -bound), bound)
        return torch.cat((actions[..., :2], turn), -1)

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator, device=self._device)

    def _tensors(self, triplets: Triplet) -> list[Tensor]:
        triplets = with_guidance(triplets, self.observation)
        arrays = (triplets.scan, triplets.goal, triplets.speed, triplets.guidance)
        return [
            torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
            for array in arrays
            if array is not None
        ]

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "network": self.network,
            "decoder": self.decoder,
            "critics": self.critics,
            "target_encoder": self.target_encoder,
            "target_critics": self.target_critics,
            "average_network": self.average_network,
            "average_decoder": self.average_decoder,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "critic": self._critic_optimizer,
            "actor": self._actor_optimizer,
            "temperature": self._temperature_optimizer,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that training goes on from, for `checkpoint.write_state`."""
        return {
            "modules": {name: module.state_dict() for name, module in self._modules().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()},
            "log_alpha": self.log_alpha.detach(),
            "updates": self.updates,
            "skipped": self.skipped,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, also after a trip through JSON keys."""
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self._optimizers().items():
            saved = state["optimizers"][name]
            optimizer.load_state_dict(
                {
                    "state": {int(k): v for k, v in saved["state"].items()},
                    "param_groups": [_group(g) for g in saved["param_groups"]],
                }
            )
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        self.updates, self.skipped = int(state["updates"]), int(state["skipped"])
        self._generator.set_state(state["generator"])


def _group(saved: dict[str, Any]) -> dict[str, Any]:
    # JSON has no tuples, and Adam unpacks its betas as one.
    return {k: tuple(v) if k == "betas" else v for k, v in saved.items()}


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


@torch.no_grad()
def _approach(source: nn.Module, target: nn.Module, tau: float) -> None:
    """``target += tau * (source - target)``."""
    torch._foreach_lerp_(_values(target.parameters()), _values(source.parameters()), tau)


def _values(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return list(parameters)
