"""Densities against integrals and hand numbers; networks against textbook layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from scanpilot.manifest import NetworkConfig
from scanpilot.networks import (
    Actor,
    Critics,
    OverlappingEncoder,
    PatchEncoder,
    log_prob,
    make_decoder,
    make_encoder,
    squash,
)
from scanpilot.observation import STATE_FEATURES, ObservationSpec

ALL = torch.ones(3)


def one_hot(component: int) -> torch.Tensor:
    return torch.eye(3)[component].double()


def row(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor([values], dtype=dtype)


# The squashed Gaussian.


def test_forward_speed_is_squashed_to_0_1_and_the_others_to_minus_1_1() -> None:
    # sigmoid(ln 3) = 3/4; tanh(ln 2) = (4 - 1) / (4 + 1) = 0.6
    np.testing.assert_allclose(squash(row(math.log(3), math.log(2), -math.log(2))), [[0.75, 0.6, -0.6]])
    assert squash(row(-1e3, -1e3, 1e3)).tolist() == [[0.0, -1.0, 1.0]]


@pytest.mark.parametrize("component", [0, 1, 2])
@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.4)])
def test_density_of_each_squashed_component_integrates_to_1(
    component: int, mean: float, log_std: float
) -> None:
    # Over the action's own range, not over u: that is what the correction is for. Points are dense
    # where the density is steep, at the ends of the range.
    u = torch.linspace(-14.0, 14.0, 50_001, dtype=torch.float64)
    a = torch.sigmoid(u) if component == 0 else torch.tanh(u)
    unsquashed = torch.zeros(len(a), 3, dtype=torch.float64)
    unsquashed[:, component] = u
    density = log_prob(
        unsquashed,
        torch.full((1, 3), mean, dtype=torch.float64),
        torch.full((1, 3), log_std, dtype=torch.float64),
        one_hot(component),
    ).exp()
    assert torch.trapezoid(density, a).item() == pytest.approx(1.0, abs=1e-4)


def test_log_prob_at_the_middle_by_hand() -> None:
    # Gaussian at its mean with deviation 1: -ln(2 pi) / 2 = -0.9189385. Sigmoid's slope at 0 is
    # 1/4, so + ln 4 = 1.3862944; tanh's is 1.
    zero = row(0, 0, 0)
    assert log_prob(zero, zero, zero, one_hot(0)).item() == pytest.approx(0.4673559, abs=1e-6)
    assert log_prob(zero, zero, zero, one_hot(1)).item() == pytest.approx(-0.9189385, abs=1e-6)
    assert log_prob(zero, zero, zero, ALL).item() == pytest.approx(-1.3705212, abs=1e-6)


def test_log_prob_away_from_the_middle_by_hand() -> None:
    # u = (1, 0.5, -2), means (0, 1, -1), deviations (1, 2, 1/2), one at a time:
    #   -1/2 - 0.9189385 = -1.4189385; a = sigmoid(1) = 0.7310586, ln a(1-a) = -1.6265233
    #   -(1/4)^2 / 2 - ln 2 - 0.9189385 = -1.6433357; 1 - tanh(1/2)^2 = 0.7864477, ln = -0.2402290
    #   -2^2 / 2 + ln 2 - 0.9189385 = -2.2257914; 1 - tanh(2)^2 = 0.0706508, ln = -2.6500055
    u, mean, log_std = row(1, 0.5, -2), row(0, 1, -1), row(0, math.log(2), -math.log(2))
    by_hand = [-1.4189385 + 1.6265233, -1.6433357 + 0.2402290, -2.2257914 + 2.6500055]
    for component, value in enumerate(by_hand):
        assert log_prob(u, mean, log_std, one_hot(component)).item() == pytest.approx(value, abs=1e-6)
    assert log_prob(u, mean, log_std, ALL).item() == pytest.approx(sum(by_hand), abs=1e-6)


def test_components_that_do_not_move_the_robot_count_nothing() -> None:
    active = torch.tensor([1.0, 0.0, 1.0])
    u = row(0.3, 0.1, -0.2).repeat(2, 1)
    u[1, 1] = 7.0
    u.requires_grad_(True)
    values = log_prob(u, row(0, 0, 0), row(-1, -1, -1), active)
    assert values[0] == values[1]
    values.sum().backward()
    assert u.grad is not None
    assert u.grad[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("u", [20.0, -20.0])
def test_log_prob_in_float32_far_out(u: float) -> None:
    # There a(1-a) and 1 - tanh^2 are 0 in float32. By hand: ln a(1-a) = -20 - 2 ln(1 + e^-20), and
    # ln(1 - tanh^2) = ln 4 - 40 - 2 ln(1 + e^-40).
    unsquashed = row(u, u, u, dtype=torch.float32).requires_grad_(True)
    values = log_prob(unsquashed, torch.full((1, 3), u), torch.zeros(1, 3), ALL)
    by_hand = -3 * 0.9189385 + 20.0 + 2 * (40.0 - math.log(4))
    assert values.item() == pytest.approx(by_hand, rel=1e-6)
    values.backward()
    assert unsquashed.grad is not None
    # d/du of the corrections: 2a - 1 and 2 tanh, both at their ends.
    np.testing.assert_allclose(unsquashed.grad, [[np.sign(u), 2 * np.sign(u), 2 * np.sign(u)]], rtol=1e-5)


# Networks.


def test_patch_encoder_equals_strided_convolutions() -> None:
    torch.manual_seed(0)
    config = NetworkConfig(filters=5, feature=7)
    encoder = PatchEncoder(3, 72, config)
    x = torch.randn(4, 3, 72)
    y, channels = x, 3
    for layer, stride in zip(encoder.layers, (6, 3, 2, 1), strict=True):
        assert isinstance(layer, nn.Linear)
        if stride == 6:
            # A patch holds frame after frame.
            weight = layer.weight.reshape(5, channels, stride)
        else:
            # Later patches hold position after position.
            weight = layer.weight.reshape(5, stride, channels).transpose(1, 2)
        y = functional.relu(functional.conv1d(y, weight, layer.bias, stride=stride))
        channels = 5
    feature = torch.tanh(encoder.norm(encoder.head(y.transpose(1, 2).flatten(1))))
    torch.testing.assert_close(encoder(x), feature)


@pytest.mark.parametrize("convolution", ["patches", "overlapping"])
@pytest.mark.parametrize(("beams", "frames"), [(15, 1), (36, 1), (37, 2), (180, 3), (247, 3), (512, 3)])
def test_decoder_gives_back_the_scans_shape(convolution: str, beams: int, frames: int) -> None:
    config = NetworkConfig(convolution=convolution, filters=4, feature=6)  # type: ignore[arg-type]
    spec = ObservationSpec(beams=beams, frames=frames)
    feature = make_encoder(spec, config)(torch.randn(2, frames, beams))
    assert feature.shape == (2, 6)
    assert feature.abs().max() <= 1.0
    assert make_decoder(spec, config)(feature).shape == (2, frames, beams)


@pytest.mark.parametrize("convolution", ["patches", "overlapping"])
def test_every_beam_reaches_the_features(convolution: str) -> None:
    torch.manual_seed(0)
    spec = ObservationSpec(beams=50, frames=2)
    encoder = make_encoder(spec, NetworkConfig(convolution=convolution, filters=16))  # type: ignore[arg-type]
    scan = torch.randn(8, 2, 50, requires_grad=True)
    encoder(scan).square().sum().backward()
    assert scan.grad is not None
    # Stride 2 with kernel 3 never looks at the last of an even number of beams.
    seen = scan.grad.abs().sum((0, 1)) > 0
    assert seen[: 50 if convolution == "patches" else 49].all()


def test_overlapping_convolutions_refuse_too_few_beams() -> None:
    with pytest.raises(ValueError, match="at least 15 beams, not 14"):
        OverlappingEncoder(1, 14, NetworkConfig())


def test_critics_equal_two_separate_networks() -> None:
    torch.manual_seed(0)
    config = NetworkConfig(feature=4, critic_hidden=(8, 6))
    critics = Critics(config)
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    feature, state, action = torch.randn(5, 4), torch.randn(5, STATE_FEATURES), torch.rand(5, 3)
    values = critics(feature, state, action)
    assert values.shape == (2, 5)
    for i in range(2):
        x = torch.cat((feature, state, action), 1)
        for layer in range(3):
            x = x @ critics.weights[layer][i] + critics.biases[layer][i]
            if layer < 2:
                mean, variance = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
                x = (x - mean) / (variance + 1e-5).sqrt() * critics.scales[layer][i] + critics.shifts[layer][
                    i
                ]
                x = x.clamp_min(0)
        torch.testing.assert_close(values[i], x[:, 0])
    assert not torch.allclose(values[0], values[1])


def test_log_std_stays_within_its_bounds() -> None:
    torch.manual_seed(0)
    actor = Actor(NetworkConfig(feature=4, log_std_min=-4.0, log_std_max=-1.0))
    _, log_std = actor(1e4 * torch.randn(64, 4), 1e4 * torch.randn(64, STATE_FEATURES))
    assert log_std.min() >= -4.0
    assert log_std.max() <= -1.0
    # Both ends are reached.
    assert log_std.max() - log_std.min() > 2.9


@pytest.mark.parametrize(
    "bad", [{"filters": 0}, {"actor_hidden": (0,)}, {"log_std_min": 1.0, "log_std_max": 1.0}]
)
def test_impossible_sizes_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"positive|below"):
        NetworkConfig(**bad)  # type: ignore[arg-type]
