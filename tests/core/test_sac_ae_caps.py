"""The agent's losses by hand and by transcription, and which loss may move which weights."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, SigmoidTransform, TanhTransform, TransformedDistribution

from scanpilot import checkpoint
from scanpilot.manifest import NetworkConfig
from scanpilot.observation import ObservationSpec
from scanpilot.replay_buffer import Batch, ReplayBuffer, States
from scanpilot.sac_ae_caps import (
    AgentConfig,
    SacAeCaps,
    action_distance,
    autoencoder_loss,
    mirrored,
    soft_target,
    temperature_loss,
)
from scanpilot.types import StepResult, Triplet

SPEC = ObservationSpec(beams=36, frames=2)
SMALL = NetworkConfig(filters=4, feature=8, actor_hidden=(16,), critic_hidden=(16,))
DIFFERENTIAL = np.array([True, False, True])
OMNI = np.array([True, True, True])


def agent(active: np.ndarray = DIFFERENTIAL, seed: int = 0, **config: Any) -> SacAeCaps:
    # Without the mirror, which is pinned by itself: what is computed by hand is what was given.
    given = {"network": SMALL, "batch_size": 8, "mirror": False, **config}
    return SacAeCaps(SPEC, active, AgentConfig(**given), seed)


def states(generator: torch.Generator, count: int = 8) -> States:
    return States(
        0.3 + 15.0 * torch.rand(count, 2, 36, generator=generator),
        4.0 * torch.randn(count, 3, generator=generator),
        torch.randn(count, 3, generator=generator),
    )


def batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(8, 3, generator=generator) * 2.0 - 1.0
    actions[:, 0].abs_()
    actions[:, 1] = 0.0
    return Batch(
        states=states(generator),
        actions=actions,
        returns=torch.randn(8, generator=generator),
        discounts=torch.tensor([0.0, 0.9, 0.81, 0.9, 0.0, 0.73, 0.9, 0.9]),
        bootstrap=states(generator),
        successors=states(generator),
    )


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def unchanged(before: list[Tensor], module: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def all_changed(before: list[Tensor], module: nn.Module) -> bool:
    return all(not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def silence(one: SacAeCaps, monkeypatch: pytest.MonkeyPatch, value: float = 0.0) -> None:
    """Every draw of noise gives this value."""
    monkeypatch.setattr(one, "_noise", lambda like: torch.full_like(like, value))


# Terms by hand.


def test_soft_target_by_hand() -> None:
    target = soft_target(
        returns=torch.tensor([1.0, 2.0]),
        discounts=torch.tensor([0.25, 0.0]),
        target_values=torch.tensor([[3.0, 9.0], [5.0, 7.0]]),
        log_probs=torch.tensor([-2.0, 4.0]),
        alpha=torch.tensor(0.5),
    )
    # 1 + (min(3, 5) + 0.5 * 2) / 4; after a terminal state the return alone.
    assert target.tolist() == [2.0, 2.0]


def test_autoencoder_loss_by_hand() -> None:
    # ((1 - 0)^2 + (2 - 4)^2) / 2 = 2.5; 0.1 * (3^2 + 4^2) / 2 = 1.25
    loss = autoencoder_loss(
        torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.0, 4.0]]]), torch.tensor([[3.0, 4.0]]), 0.1
    )
    assert loss.item() == pytest.approx(3.75)


def test_action_distance_by_hand() -> None:
    a = torch.tensor([[1.0, 5.0, 0.0], [0.0, 0.0, 0.0]])
    b = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0]])
    # (1 + 9 + 4 + 1) / 2 over all components; without the lateral one (1 + 4 + 1) / 2.
    assert action_distance(a, b, torch.ones(3)).item() == 7.5
    assert action_distance(a, b, torch.tensor([1.0, 0.0, 1.0])).item() == 3.0


@pytest.mark.parametrize(
    ("log_probs", "gradient"),
    [
        # Entropy 2 above its target -2: alpha is to fall. -(mean(-1, -3) - 2) = 4.
        ([-1.0, -3.0], 4.0),
        # Entropy -5 below its target: alpha is to rise. -(5 - 2) = -3.
        ([5.0, 5.0], -3.0),
    ],
)
def test_temperature_moves_towards_the_target_entropy(log_probs: list[float], gradient: float) -> None:
    log_alpha = torch.tensor(0.3, requires_grad=True)
    temperature_loss(log_alpha, torch.tensor(log_probs), -2.0).backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_an_update_moves_the_temperature_to_the_right_side(target: float, rises: bool) -> None:
    one = agent(target_entropy=target)
    before = one.alpha.item()
    one.update(batch())
    assert (one.alpha.item() > before) == rises
    # Adam's first step is its learning rate.
    assert abs(math.log(one.alpha.item() / before)) == pytest.approx(5e-4, rel=1e-3)


def test_a_component_that_moves_nothing_asks_for_no_entropy() -> None:
    assert agent(DIFFERENTIAL).target_entropy == -2.0
    assert agent(OMNI).target_entropy == -3.0


# Whole losses against a transcription with torch's own distributions.


def reference_log_prob(
    one: SacAeCaps, mean: Tensor, log_std: Tensor, noise: float, active: np.ndarray
) -> Tensor:
    total = torch.zeros(len(mean))
    for i in np.flatnonzero(active):
        transform = SigmoidTransform() if i == 0 else TanhTransform()
        distribution = TransformedDistribution(Normal(mean[:, i], log_std[:, i].exp()), [transform])
        action = transform(mean[:, i] + noise * log_std[:, i].exp())
        total = total + distribution.log_prob(action)
    return total


def reference_encoding(one: SacAeCaps, seen: States) -> tuple[Tensor, Tensor]:
    pixels = (seen.scan.log() - 1.0) / 2.0
    distance = seen.goal[:, :2].norm(dim=1)
    state = torch.stack(
        (
            seen.goal[:, 0] / distance,
            seen.goal[:, 1] / distance,
            distance.clamp_max(10.0) / 5.0 - 1.0,
            (-distance).exp(),
            seen.goal[:, 2].cos(),
            seen.goal[:, 2].sin(),
            *seen.speed.T,
        ),
        1,
    )
    return pixels, state


def squashed(u: Tensor, active: np.ndarray) -> Tensor:
    action = torch.stack((1.0 / (1.0 + (-u[:, 0]).exp()), u[:, 1].tanh(), u[:, 2].tanh()), 1)
    return action * torch.tensor(active)


@pytest.mark.parametrize("active", [DIFFERENTIAL, OMNI], ids=["differential", "omnidirectional"])
def test_critic_and_actor_losses_equal_a_transcription(
    active: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, data, noise = agent(active, caps_temporal=0.0, caps_spatial=0.0), batch(), 0.7
    silence(one, monkeypatch, noise)
    with torch.no_grad():
        # Targets that differ from the learner's, so that a mix-up shows.
        for module in (one.target_critics, one.target_encoder):
            for parameter in module.parameters():
                parameter.add_(0.3)
        network = one.network
        pixels, state = reference_encoding(one, data.bootstrap)
        mean, log_std = network.actor(network.encoder(pixels), state)
        action = squashed(mean + noise * log_std.exp(), active)
        q = one.target_critics(one.target_encoder(pixels), state, action)
        log_probs = reference_log_prob(one, mean, log_std, noise, active)
        target = data.returns + data.discounts * (torch.minimum(q[0], q[1]) - 0.1 * log_probs)

        pixels, state = reference_encoding(one, data.states)
        feature = network.encoder(pixels)
        values = one.critics(feature, state, data.actions)
        critic = ((values[0] - target) ** 2).mean() + ((values[1] - target) ** 2).mean()
        decoded = one.decoder(feature)
        autoencoder = ((decoded - pixels) ** 2).mean() + 1e-6 * 0.5 * (feature**2).sum(1).mean()

        mean, log_std = network.actor(feature, state)
        q = one.critics(feature, state, squashed(mean + noise * log_std.exp(), active))
        log_probs = reference_log_prob(one, mean, log_std, noise, active)
        actor = (0.1 * log_probs - torch.minimum(q[0], q[1])).mean()
    losses = one.update(data)
    assert losses["losses/critic"].item() == pytest.approx(critic.item(), rel=1e-4)
    assert losses["losses/autoencoder"].item() == pytest.approx(autoencoder.item(), rel=1e-4)
    assert losses["losses/actor"].item() == pytest.approx(actor.item(), rel=1e-4)
    assert losses["values/entropy"].item() == pytest.approx(-log_probs.mean().item(), rel=1e-4)


def mean_action(one: SacAeCaps, seen: States, squash: bool) -> Tensor:
    with torch.no_grad():
        pixels, state = reference_encoding(one, seen)
        mean, _ = one.network.actor(one.network.encoder(pixels), state)
    return squashed(mean, DIFFERENTIAL) if squash else mean * torch.tensor(DIFFERENTIAL)


@pytest.mark.parametrize("caps_on", ["squashed", "unsquashed"])
def test_caps_temporal_compares_the_means_of_consecutive_states(caps_on: str) -> None:
    one, data = agent(caps_on=caps_on), batch()
    squash = caps_on == "squashed"
    here, there = mean_action(one, data.states, squash), mean_action(one, data.successors, squash)
    by_hand = ((here - there) ** 2).sum(1).mean().item()
    losses = one.update(data)
    assert losses["losses/caps_temporal"].item() == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("caps_on", ["squashed", "unsquashed"])
def test_caps_spatial_compares_with_the_reconstruction_clipped_in_metres(
    caps_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, data = agent(caps_on=caps_on, caps_sigma=0.25), batch()
    silence(one, monkeypatch, 2.0)
    with torch.no_grad():
        # Reconstructions far beyond the lidar's range, either way.
        for parameter in one.decoder.parameters():
            parameter.mul_(8.0)
        pixels, _ = reference_encoding(one, data.states)
        decoded = one.decoder(one.network.encoder(pixels))
    # ln r = 2 x + 1
    metres = (2.0 * decoded + 1.0).exp()
    assert (metres < 0.2).any()
    assert (metres > 20.0).any()
    # Noise 2 times deviation 0.25.
    near = States(metres.clamp(0.2, 20.0), data.states.goal + 0.5, data.states.speed + 0.5)
    squash = caps_on == "squashed"
    here, there = mean_action(one, data.states, squash), mean_action(one, near, squash)
    losses = one.update(data)
    assert losses["losses/caps_spatial"].item() == pytest.approx(
        ((here - there) ** 2).sum(1).mean().item(), rel=1e-4
    )


@pytest.mark.parametrize("term", ["caps_temporal", "caps_spatial"])
def test_caps_terms_pull_the_means_together(term: str) -> None:
    weights_of = {"caps_temporal": 0.0, "caps_spatial": 0.0, term: 1e4}
    one, data = agent(**weights_of, learning_rate=1e-3), batch()
    first = one.update(data)[f"losses/{term}"].item()
    for _ in range(60):
        losses = one.update(data)
    assert losses.get(f"losses/{term}", torch.tensor(0.0)).item() < 0.5 * first


def test_both_caps_terms_reach_the_actor_from_both_sides() -> None:
    # Detaching the neighbour's mean is another algorithm: gradients must differ from it.
    one, data = agent(caps_temporal=1.0, caps_spatial=0.0), batch()
    feature = one.network.encoder((data.states.scan.log() - 1.0) / 2.0).detach()
    _, state = reference_encoding(one, data.states)
    mean, _ = one.network.actor(feature, state)
    one._temporal(data, mean).backward()
    both = [p.grad.clone() for p in one.network.actor.parameters() if p.grad is not None]
    one.network.actor.zero_grad()
    mean, _ = one.network.actor(feature, state)
    one._temporal(data, mean.detach()).backward()
    there = [p.grad.clone() for p in one.network.actor.parameters() if p.grad is not None]
    assert sum(g.abs().sum() for g in there) > 0
    assert not any(torch.allclose(a, b) for a, b in zip(both, there, strict=True) if b.abs().sum() > 0)


# Which loss moves what.


def test_the_actors_step_moves_the_actor_alone() -> None:
    one, data = agent(), batch()
    pixels, state = reference_encoding(one, data.states)
    feature = one.network.encoder(pixels)
    decoded = one.decoder(feature)
    still = {m: weights(getattr(one, m)) for m in ("critics", "decoder", "target_critics", "target_encoder")}
    encoder, actor = weights(one.network.encoder), weights(one.network.actor)
    one._actor_step(data, feature.detach(), decoded.detach(), state)
    assert all_changed(actor, one.network.actor)
    assert unchanged(encoder, one.network.encoder)
    for name, before in still.items():
        assert unchanged(before, getattr(one, name)), name
    for module in (one.network.encoder, one.decoder, one.critics):
        assert all(p.grad is None for p in module.parameters())
        assert all(p.requires_grad for p in module.parameters())


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def test_an_update_with_the_actors_turn_gives_the_rest_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With caps on and every path through encoder and decoder alive, in `update` itself.
    found = []
    for first in (0, 1):
        one = agent(caps_temporal=10.0, caps_spatial=10.0)
        one.updates = first  # of 2: the actor's turn, and not
        losses = one.update(batch())
        assert ("losses/actor" in losses) == (first == 0)
        found.append([gradients(m) for m in (one.network.encoder, one.decoder, one.critics)])
    for with_actor, without in zip(*found, strict=True):
        for a, b in zip(with_actor, without, strict=True):
            assert a is not None
            assert b is not None
            assert torch.equal(a, b)


def test_a_component_that_moves_nothing_gets_no_gradient() -> None:
    one = agent(DIFFERENTIAL, caps_temporal=1.0, caps_spatial=1.0)
    one.update(batch())
    gradient = one.network.actor.out.weight.grad
    assert gradient is not None
    # Rows: three means, three deviations; the second of each is lateral.
    norms = gradient.abs().sum(1)
    assert norms[[1, 4]].tolist() == [0.0, 0.0]
    assert (norms[[0, 2, 3, 5]] > 0).all()


def test_a_cars_critics_are_asked_only_about_turns_that_it_can_drive() -> None:
    one = SacAeCaps(SPEC, DIFFERENTIAL, AgentConfig(network=SMALL, mirror=False), 0, turn_per_forward=0.5)
    asked: list[Tensor] = []
    for critics in (one.critics, one.target_critics):
        critics.register_forward_pre_hook(lambda _, arguments: asked.append(arguments[2].detach()))
    executable = dataclasses.replace(batch(), actions=torch.tensor([[0.4, 0.0, 0.2]]).expand(8, 3))
    one.update(executable)
    # Targets, the stored actions, and the actor's own.
    assert len(asked) == 3
    for actions in asked:
        assert (actions[:, 2].abs() <= 0.5 * actions[:, 0] + 1e-6).all()
    # By hand: 0.4 forward bears a turn of 0.2; what is less stays.
    turns = one._executed(torch.tensor([[0.4, 0.3, 0.9], [0.4, 0.3, -0.9], [0.4, 0.0, 0.1]]))
    assert turns.tolist() == [pytest.approx(row) for row in ([0.4, 0, 0.2], [0.4, 0, -0.2], [0.4, 0, 0.1])]


def test_the_autoencoder_alone_moves_encoder_and_decoder() -> None:
    one = agent()
    with torch.no_grad():
        # Critics blind to features: their loss has no gradient for the encoder.
        one.critics.weights[0][:, :8] = 0.0
    encoder, decoder = weights(one.network.encoder), weights(one.decoder)
    one.update(batch())
    assert all_changed(encoder, one.network.encoder)
    assert all_changed(decoder, one.decoder)


def test_the_critics_move_the_encoder_and_leave_the_decoder_alone() -> None:
    one = agent(reconstruction=0.0)
    encoder, decoder = weights(one.network.encoder), weights(one.decoder)
    one.update(batch())
    assert all_changed(encoder, one.network.encoder)
    # Bit for bit: Adam makes full steps of the smallest weight decay.
    assert unchanged(decoder, one.decoder)


def test_the_autoencoder_learns_one_scan_by_heart() -> None:
    one, data = agent(learning_rate=5e-3), batch()
    first = one.update(data)["losses/autoencoder"].item()
    for _ in range(150):
        last = one.update(data)["losses/autoencoder"].item()
    assert last < 0.5 * first


def test_actor_interval_counts_from_the_first_update() -> None:
    one = agent(actor_interval=3)
    moved = []
    for i in range(7):
        before, alpha, target = weights(one.network.actor), one.alpha.item(), weights(one.target_critics)
        one.update(batch(i))
        moved.append(
            (
                not unchanged(before, one.network.actor),
                one.alpha.item() != alpha,
                not unchanged(target, one.target_critics),
            )
        )
    assert moved == [(i % 3 == 0,) * 3 for i in range(7)]


# Targets and averages.


def test_targets_follow_by_their_own_taus() -> None:
    one = agent(critic_tau=0.25, encoder_tau=0.5)
    critics, encoder = weights(one.critics), weights(one.network.encoder)
    one.update(batch())
    # Both began at the old weights: old + tau * (new - old).
    for old, new, target in zip(
        critics, one.critics.parameters(), one.target_critics.parameters(), strict=True
    ):
        assert not torch.equal(old, new)
        torch.testing.assert_close(target, 0.75 * old + 0.25 * new, rtol=0, atol=1e-7)
    for old, new, target in zip(
        encoder, one.network.encoder.parameters(), one.target_encoder.parameters(), strict=True
    ):
        torch.testing.assert_close(target, 0.5 * old + 0.5 * new, rtol=0, atol=1e-7)


def test_targets_by_hand_over_two_steps() -> None:
    one = agent(critic_tau=0.25, encoder_tau=0.5)
    with torch.no_grad():
        for module, value in ((one.critics, 8.0), (one.network.encoder, 8.0)):
            for parameter in module.parameters():
                parameter.fill_(value)
        for module in (one.target_critics, one.target_encoder):
            for parameter in module.parameters():
                parameter.fill_(0.0)
    one._follow()
    one._follow()
    # 0 -> 2 -> 3.5 by a quarter; 0 -> 4 -> 6 by a half.
    assert {float(v) for p in one.target_critics.parameters() for v in p.flatten()} == {3.5}
    assert {float(v) for p in one.target_encoder.parameters() for v in p.flatten()} == {6.0}


def test_averages_forget_the_beginning_and_then_decay_by_their_weight() -> None:
    one = agent(weight_average=0.15, actor_interval=1)
    # Of count steps count / (count + 10) is kept, and 0.15 at most: 1/11, 2/12 -> 0.15, 0.15.
    for i, kept in enumerate([1 / 11, 0.15, 0.15]):
        old = [*weights(one.average_network), *weights(one.average_decoder)]
        one.update(batch(i))
        new = [*weights(one.network), *weights(one.decoder)]
        now = [*weights(one.average_network), *weights(one.average_decoder)]
        for a, b, c in zip(old, new, now, strict=True):
            torch.testing.assert_close(c, kept * a + (1 - kept) * b, rtol=0, atol=1e-6)


def test_without_averaging_the_learners_own_weights_act() -> None:
    one = agent(weight_average=0.0, actor_interval=1)
    one.update(batch())
    assert unchanged(weights(one.network), one.average_network)
    assert unchanged(weights(one.decoder), one.average_decoder)


def test_learning_rate_falls_linearly_over_the_second_half() -> None:
    one = agent(learning_rate=1.0, learning_rate_end=0.1, temperature_learning_rate=0.7)
    for fraction, rate in [(0.0, 1.0), (0.5, 1.0), (0.75, 0.55), (1.0, 0.1), (3.0, 0.1), (-1.0, 1.0)]:
        one.set_progress(fraction)
        groups = [*one._critic_optimizer.param_groups, *one._actor_optimizer.param_groups]
        assert [g["lr"] for g in groups] == pytest.approx([rate] * 3)
        assert one._temperature_optimizer.param_groups[0]["lr"] == 0.7


# Bad numbers.


def spoilt(where: str, bad: float) -> Batch:
    data = copy.deepcopy(batch())
    owner, _, name = where.rpartition(".")
    tensor = getattr(getattr(data, owner) if owner else data, name)
    tensor.reshape(-1)[3] = bad
    return data


ALL_MODULES = (
    "network", "decoder", "critics", "target_encoder", "target_critics", "average_network", "average_decoder",
)  # fmt: skip


def all_finite(one: SacAeCaps) -> bool:
    parameters = [p for name in ALL_MODULES for p in getattr(one, name).parameters()]
    moments = [v for o in one._optimizers().values() for s in o.state.values() for v in s.values()]
    return all(bool(torch.isfinite(v).all()) for v in [*parameters, *moments, one.log_alpha])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "where",
    [
        "returns",
        "actions",
        "states.scan",
        "states.goal",
        "bootstrap.scan",
        "bootstrap.speed",
        "successors.scan",
    ],
)
def test_numbers_that_are_not_finite_never_reach_weights(where: str, bad: float) -> None:
    one = agent()
    one.update(batch())
    one.updates = 0  # the actor's turn again
    before = one.skipped
    one.update(spoilt(where, bad))
    assert one.skipped > before
    assert all_finite(one)
    # And training goes on.
    skipped = one.skipped
    losses = one.update(batch(1))
    assert one.skipped == skipped
    assert all(torch.isfinite(v) for v in losses.values())


def test_a_bad_gradient_from_a_finite_loss_is_skipped_and_counted() -> None:
    one = agent(caps_temporal=0.0, caps_spatial=0.0)
    one.critics.biases[-1].register_hook(lambda g: g * math.nan)
    encoder, actor = weights(one.network.encoder), weights(one.network.actor)
    one.update(batch())
    assert one.skipped == 1
    assert unchanged(encoder, one.network.encoder)
    assert all_changed(actor, one.network.actor)


def test_long_gradients_are_cut() -> None:
    one = agent(max_gradient_norm=1e-3)
    data = batch()
    data.returns.mul_(1e6)
    one.update(data)
    assert one.skipped == 0
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in one._critic_parameters if p.grad is not None))
    assert norm == pytest.approx(1e-3, rel=1e-3)


# Acting.


def triplets(count: int = 5, seed: int = 3) -> Triplet:
    seen = states(torch.Generator().manual_seed(seed), count)
    return Triplet(seen.scan.numpy(), seen.goal.numpy(), seen.speed.numpy())


def test_exploration_is_the_squashed_gaussian() -> None:
    one = agent(OMNI)
    same = triplets(1)[np.zeros(4000, dtype=np.int64)]
    drawn = torch.from_numpy(one.explore(same)).double()
    assert (drawn[:, 0].min() > 0.0, drawn[:, 0].max() < 1.0, drawn.abs().max() < 1.0) == (True, True, True)
    u = torch.cat((torch.logit(drawn[:, :1]), torch.atanh(drawn[:, 1:])), 1)
    with torch.no_grad():
        mean, log_std = one.network.distribution(
            *(torch.from_numpy(a[:1]) for a in (same.scan, same.goal, same.speed))
        )
    # Standard errors: 1.6 % of the deviation for the mean, 1.1 % for the deviation.
    deviation = log_std.exp()[0].double()
    assert ((u.mean(0) - mean[0]).abs() < 0.08 * deviation).all()
    assert ((u.std(0) / deviation - 1.0).abs() < 0.06).all()


def test_a_robot_that_sees_what_is_no_number_stands_and_the_others_drive() -> None:
    one = agent()
    seen = Triplet(np.ones((3, 2, 36), np.float32), np.ones((3, 3), np.float32), np.zeros((3, 3), np.float32))
    seen.scan[1, 0, 7] = math.nan
    actions = one.explore(seen)
    assert actions[1].tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(actions).all()
    assert (actions[[0, 2], 0] > 0.0).all()


def test_acting_is_the_squashed_mean_of_the_averaged_weights() -> None:
    one = agent()
    for i in range(3):
        one.update(batch(i))
    with torch.no_grad():
        for parameter in one.network.parameters():
            parameter.zero_()
    seen = triplets()
    network = one.average_network
    pixels, state = reference_encoding(
        one, States(*(torch.from_numpy(a) for a in (seen.scan, seen.goal, seen.speed)))
    )
    with torch.no_grad():
        mean, _ = network.actor(network.encoder(pixels), state)
    np.testing.assert_allclose(one.act(seen), squashed(mean, OMNI), atol=1e-6)


def test_the_seed_decides_weights_and_exploration_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = agent(seed=5)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn), "making an agent must not move the global generator"
    second, third = agent(seed=5), agent(seed=6)
    assert unchanged(weights(first.network), second.network)
    assert not unchanged(weights(first.network), third.network)
    np.testing.assert_array_equal(first.explore(triplets()), second.explore(triplets()))


# Mirror.


def test_the_mirror_swaps_left_and_right_by_hand() -> None:
    # One frame of three beams, from right to left.
    state = States(
        torch.tensor([[[1.0, 2.0, 3.0]]] * 2),
        torch.tensor([[1.0, 2.0, 0.5]] * 2),
        torch.tensor([[0.1, 0.2, 0.3]] * 2),
    )
    data = Batch(
        states=state,
        actions=torch.tensor([[0.5, 0.25, -1.0]] * 2),
        returns=torch.tensor([7.0, 8.0]),
        discounts=torch.tensor([0.9, 0.0]),
        bootstrap=state,
        successors=state,
    )
    seen = mirrored(data, 1)
    for one in (seen.states, seen.bootstrap, seen.successors):
        assert one.scan.tolist() == [[[3, 2, 1]], [[1, 2, 3]]]
        torch.testing.assert_close(one.goal, torch.tensor([[1.0, -2.0, -0.5], [1.0, 2.0, 0.5]]))
        torch.testing.assert_close(one.speed, torch.tensor([[0.1, -0.2, -0.3], [0.1, 0.2, 0.3]]))
    assert seen.actions.tolist() == [[0.5, -0.25, 1.0], [0.5, 0.25, -1.0]]
    assert (seen.returns.tolist(), seen.discounts.tolist()) == ([7, 8], data.discounts.tolist())
    assert data.states.scan[0, 0].tolist() == [1, 2, 3]


def test_a_lopsided_field_of_view_has_no_mirror() -> None:
    lopsided = ObservationSpec(beams=36, frames=2, angle_min=-1.0, angle_max=2.0)
    with pytest.raises(ValueError, match="mirror"):
        SacAeCaps(lopsided, OMNI, AgentConfig(network=SMALL, mirror=True), 0)


# Resume.


def filled_replay(seed: int) -> ReplayBuffer:
    replay = ReplayBuffer(64, SPEC.scan_shape, seed, n_step=3, gamma=0.9)
    rng = np.random.default_rng(seed)

    def some() -> Triplet:
        return Triplet(
            rng.uniform(0.2, 20.0, (4, 2, 36)).astype(np.float32),
            rng.normal(0, 4, (4, 3)).astype(np.float32),
            rng.normal(0, 1, (4, 3)).astype(np.float32),
        )

    for _ in range(20):
        ended = rng.random((2, 4)) < 0.1
        actions = rng.uniform(0, 1, (4, 3)).astype(np.float32)
        rewards = rng.normal(0, 1, 4).astype(np.float32)
        replay.add(some(), StepResult(some(), actions, rewards, ended[0], ended[1], ended[0], ended[0]))
    return replay


@pytest.mark.parametrize("before", [0, 5])
def test_a_resumed_agent_goes_on_exactly_as_if_it_had_not_stopped(before: int, tmp_path: Path) -> None:
    one, replay = agent(OMNI), filled_replay(1)
    for _ in range(before):
        one.update(replay.sample(8))
    one.set_progress(0.8)
    one.explore(triplets())
    checkpoint.write_state(tmp_path / "training", {"agent": one.state_dict(), "replay": replay.state_dict()})
    state = checkpoint.read_state(tmp_path / "training")
    other, restored = agent(OMNI, seed=77), ReplayBuffer(64, SPEC.scan_shape, 88, n_step=3, gamma=0.9)
    other.load_state_dict(state["agent"])
    restored.load_state_dict(state["replay"])
    for _ in range(20):
        uninterrupted, resumed = one.update(replay.sample(8)), other.update(restored.sample(8))
        assert uninterrupted.keys() == resumed.keys()
        assert {k: v.item() for k, v in uninterrupted.items()} == {k: v.item() for k, v in resumed.items()}
    np.testing.assert_array_equal(one.explore(triplets()), other.explore(triplets()))
    np.testing.assert_array_equal(one.act(triplets()), other.act(triplets()))
    assert (one.updates, one.skipped) == (other.updates, other.skipped)
    for name in ALL_MODULES:
        assert unchanged(weights(getattr(one, name)), getattr(other, name)), name


@pytest.mark.parametrize(
    "bad",
    [
        {"gamma": 1.0}, {"n_step": 0}, {"actor_interval": 0}, {"critic_tau": 0.0}, {"encoder_tau": 1.5},
        {"weight_average": 1.0}, {"learning_rate_end": 0.0}, {"caps_temporal": -1.0},
        {"reconstruction": -0.1},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        AgentConfig(**bad)  # type: ignore[arg-type]


def test_the_mirror_swaps_the_side_of_the_way_by_hand() -> None:
    data = batch()

    def led(seen: States) -> States:
        return dataclasses.replace(seen, guidance=torch.tensor([0.6, 0.8, 2.0]).repeat(8, 1))

    data = dataclasses.replace(data, states=led(data.states), bootstrap=led(data.bootstrap))
    seen = mirrored(data, 4)
    for states_ in (seen.states, seen.bootstrap):
        assert states_.guidance is not None
        # The first half goes round on the other side, as far; the rest is as it was.
        torch.testing.assert_close(states_.guidance[:4], torch.tensor([0.6, -0.8, 2.0]).repeat(4, 1))
        torch.testing.assert_close(states_.guidance[4:], torch.tensor([0.6, 0.8, 2.0]).repeat(4, 1))
