"""Inference: the agent's own mean, one robot as a row of a batch, and only executable actions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanpilot import checkpoint
from scanpilot.command import active_components, executed_actions
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.networks import new_networks
from scanpilot.observation import ObservationSpec
from scanpilot.policy import Policy
from scanpilot.replay_buffer import Batch, States
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sac_ae_caps import AgentConfig, SacAeCaps
from scanpilot.torch_inference import TorchInference
from scanpilot.types import InvalidInput, Triplet

SPEC = ObservationSpec(beams=36, frames=2)
SMALL = NetworkConfig(filters=4, feature=8, actor_hidden=(16,), critic_hidden=(16,))


def robot(kinematics: str = "differential") -> RobotSpec:
    return RobotSpec(
        "test",
        kinematics,  # type: ignore[arg-type]
        Footprint(radius=0.2),
        Limits(vx=0.5, wz=2.0, vy=0.25 if kinematics == "omnidirectional" else 0.0),
        Lidar(beams=36),
        turning_radius=0.8 if kinematics == "car" else 0.0,
    )


def manifest(kinematics: str = "differential") -> PolicyManifest:
    return PolicyManifest("test", robot(kinematics), SPEC, SMALL, 0.2)


def policy(kinematics: str = "differential", bias: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Policy:
    torch.manual_seed(0)
    network, decoder = new_networks(manifest(kinematics))
    with torch.no_grad():
        network.actor.out.bias[:3] += torch.tensor(bias)
    return Policy(manifest(kinematics), TorchInference(network, decoder), "test")


def triplets(count: int = 6) -> Triplet:
    rng = np.random.default_rng(4)
    return Triplet(
        rng.uniform(0.2, 20.0, (count, 2, 36)).astype(np.float32),
        rng.normal(0.0, 4.0, (count, 3)).astype(np.float32),
        rng.normal(0.0, 1.0, (count, 3)).astype(np.float32),
    )


def trained_agent(kinematics: str) -> SacAeCaps:
    agent = SacAeCaps(
        SPEC, active_components(robot(kinematics)), AgentConfig(network=SMALL, learning_rate=0.01), 0
    )
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)

        def states(g: torch.Generator = g) -> States:
            return States(
                0.3 + torch.rand(8, 2, 36, generator=g), torch.randn(8, 3, generator=g), torch.zeros(8, 3)
            )

        rewards = torch.randn(8, generator=g)
        agent.update(Batch(states(), torch.zeros(8, 3), rewards, torch.full((8,), 0.9), states(), states()))
    return agent


@pytest.mark.parametrize("kinematics", ["differential", "omnidirectional", "car"])
def test_a_published_policy_acts_exactly_as_the_agents_averaged_mean(kinematics: str, tmp_path: Path) -> None:
    agent = trained_agent(kinematics)
    checkpoint.write_policy(
        tmp_path / "policy", manifest(kinematics), agent.average_network, agent.average_decoder
    )
    loaded = checkpoint.load_policy(tmp_path / "policy")
    wanted = executed_actions(agent.act(triplets()), robot(kinematics))
    np.testing.assert_array_equal(loaded.act(triplets()), wanted)
    # It is the average, not the learner.
    learner = agent.network(
        *(torch.from_numpy(a) for a in (triplets().scan, triplets().goal, triplets().speed))
    )
    assert not np.array_equal(executed_actions(learner.detach().numpy(), robot(kinematics)), wanted)


def test_one_robot_is_a_row_of_a_batch() -> None:
    one, batch = policy("omnidirectional"), triplets()
    together = one.act(batch)
    assert together.shape == (6, 3)
    assert together.dtype == np.float32
    for i in range(6):
        single = one.act(batch[i])
        assert single.shape == (3,)
        np.testing.assert_allclose(single, together[i], atol=1e-6)
        np.testing.assert_allclose(one.reconstruct(batch[i]), one.reconstruct(batch)[i], rtol=1e-5)


@pytest.mark.parametrize("bias", [50.0, -50.0])
def test_actions_stay_in_their_box(bias: float) -> None:
    action = policy("omnidirectional", (bias, bias, bias)).act(triplets())
    expected = [1.0, 1.0, 1.0] if bias > 0 else [0.0, -1.0, -1.0]
    np.testing.assert_allclose(action, [expected] * 6, atol=1e-6)


@pytest.mark.parametrize("kinematics", ["differential", "car"])
def test_lateral_is_zero_unless_the_robot_can(kinematics: str) -> None:
    assert (policy(kinematics, (0.0, 3.0, 0.0)).act(triplets())[:, 1] == 0.0).all()
    assert (policy("omnidirectional", (0.0, 3.0, 0.0)).act(triplets())[:, 1] > 0.5).all()


def test_a_cars_turn_is_bounded_by_its_speed() -> None:
    action = policy("car", (0.0, 0.0, 50.0)).act(triplets())
    # 0.5 m/s on 0.8 m, of 2 rad/s: 0.3125 at full speed.
    np.testing.assert_allclose(action[:, 2], 0.3125 * action[:, 0], rtol=1e-5)


def test_reconstructions_are_the_newest_scan_in_metres_within_range() -> None:
    one = policy()
    seen = triplets()
    with torch.no_grad():
        feature = one.inference.network.encoder((torch.from_numpy(seen.scan).log() - 1.0) / 2.0)
        metres = (2.0 * one.inference.decoder(feature)[:, -1] + 1.0).exp().clamp(0.2, 20.0)
    rebuilt = one.reconstruct(seen)
    assert rebuilt.shape == (6, 36)
    np.testing.assert_allclose(rebuilt, metres, rtol=1e-4)
    assert rebuilt.min() >= np.float32(0.2) * (1 - 1e-6)
    assert rebuilt.max() <= 20.0 * (1 + 1e-6)


@pytest.mark.parametrize("field", ["scan", "goal", "speed"])
def test_input_that_is_not_finite_gives_no_action(field: str) -> None:
    batch = triplets()
    getattr(batch, field).reshape(-1)[0] = math.nan
    with pytest.raises(InvalidInput, match="finite"):
        policy().act(batch)


def test_arrays_that_are_views_are_read_in_their_order() -> None:
    one, batch = policy(), triplets()
    view: dict[str, Any] = {
        name: np.asfortranarray(getattr(batch, name))[::-1] for name in ("scan", "goal", "speed")
    }
    np.testing.assert_allclose(one.act(Triplet(**view)), one.act(batch)[::-1], atol=1e-6)


def test_acting_needs_no_gradients() -> None:
    one = policy()
    assert not any(
        p.requires_grad for p in [*one.inference.network.parameters(), *one.inference.decoder.parameters()]
    )
