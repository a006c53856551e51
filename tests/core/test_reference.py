"""The reference: its configuration loads and learns, and its transcription is of its sizes."""

from __future__ import annotations

import numpy as np
import torch

from scanpilot import command, configuration, resources
from scanpilot.observation import observation_for
from scanpilot.reference import BATCH, ReferenceLearner, Replay
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.robot import load_robot
from scanpilot.sac_ae_caps import SacAeCaps
from scanpilot.trainer import TrainConfig
from scanpilot.types import StepResult, Triplet


def test_the_reference_configuration_learns() -> None:
    config = configuration.load(TrainConfig, resources.root() / "config" / "reference.yaml")
    agent = config.agent
    assert (agent.batch_size, config.replay_capacity, agent.gamma, agent.n_step) == (256, 20_000, 0.99, 1)
    assert (agent.network.actor_hidden, agent.network.critic_hidden) == ((256, 256), (1024, 1024))
    assert agent.encoder_tau == 5 * agent.critic_tau
    assert agent.temperature_learning_rate == agent.learning_rate / 10
    robot = load_robot(resources.find("robot", "generic_diff"))
    observation = observation_for(robot, config.observation.beams, config.observation.frames)
    learner = SacAeCaps(observation, command.active_components(robot), agent, 0)
    replay = ReplayBuffer(64, observation.scan_shape, 0)
    rng = np.random.default_rng(0)
    none = np.zeros(64, np.bool_)
    seen = Triplet(
        rng.uniform(0.3, 9.0, (64, *observation.scan_shape)).astype(np.float32),
        rng.normal(size=(64, 3)).astype(np.float32),
        rng.normal(size=(64, 3)).astype(np.float32),
    )
    replay.add(
        seen, StepResult(seen, np.ones((64, 3), np.float32), np.ones(64, np.float32), none, none, none, none)
    )
    losses = learner.update(replay.sample(agent.batch_size))
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert (learner.updates, learner.skipped) == (1, 0)


def test_the_transcription_has_the_references_sizes_and_learns() -> None:
    learner = ReferenceLearner()
    # Convolutions of 3 * 3 * 32 and 3 times 32 * 3 * 32, a head of 249 * 32 * 50, each with its biases.
    encoder = (3 * 3 * 32 + 32) + 3 * (32 * 3 * 32 + 32) + (249 * 32 * 50 + 50) + 2 * 50
    assert sum(p.numel() for p in learner.critic.encoder.parameters()) == encoder
    # 50 features, 6 of goal and speed, 3 of the action; 1024-1024.
    critic = (59 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 + 1)
    assert sum(p.numel() for p in learner.critic.q1.parameters()) == critic
    assert learner.decoder(torch.zeros(2, 50)).shape == (2, 3, 512)
    replay = Replay(np.random.default_rng(0), capacity=300)
    before = [p.detach().clone() for p in learner.target.parameters()]
    learner.update(replay)
    assert len(replay.sample()[0]) == BATCH
    assert not any(torch.equal(a, b) for a, b in zip(before, learner.target.parameters(), strict=True))
