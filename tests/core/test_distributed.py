"""Collecting on a real Ray cluster: what arrives, whose it is, and what the death of a worker changes."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scanpilot import checkpoint, configuration, resources, training
from scanpilot.fleet import Experience
from scanpilot.observation import observation_for
from scanpilot.replay_buffer import ReplayBuffer
from scanpilot.robot import load_robot
from scanpilot.sac_ae_caps import SacAeCaps
from scanpilot.trainer import TrainConfig

ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
from scanpilot import distributed  # noqa: E402

SMALL = (
    "fleet.worlds=1",
    "fleet.robots_per_world=3",
    "fleet.world_lifetime=40",
    "warmup_steps=60",
    "agent.batch_size=16",
    "agent.network.critic_hidden=[16, 16]",
    "agent.network.actor_hidden=[16, 16]",
    "replay_capacity=500",
    "updates_per_step=1",
    "validation_episodes=4",
    "validations=1",
    "task.time_limit=30",
)
ROBOTS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def plan() -> distributed.Plan:
    robot = load_robot(resources.find("robot", "generic_diff"))
    config = configuration.load(TrainConfig, resources.root() / "config" / "train.yaml", SMALL)
    return distributed.Plan(robot, observation_for(robot, 36, 3), config, 0)


def gathered(fleet: distributed.RayFleet, workers: set[int]) -> list[Experience]:
    """What arrives until each of these numbers of robots' blocks has sent something."""
    received: list[Experience] = []
    end = time.monotonic() + 240.0
    while not workers <= {int(e.robots[0]) // ROBOTS for e in received}:
        assert time.monotonic() < end, f"only {sorted({int(e.robots[0]) for e in received})} arrived"
        received.extend(fleet.receive(wait=True))
    return received


# Before the others: where Ray is connected already, no address is looked at.
def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ConnectionError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*ray start --head"):
        distributed.RayFleet(plan(), workers=1, address="127.0.0.1:1")


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        distributed.RayFleet(plan(), workers=0, address="local")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cluster")
def test_workers_act_with_what_they_are_sent_and_survive_their_death() -> None:
    made = plan()
    fleet = distributed.RayFleet(made, workers=2, address="local")
    assert fleet.num_robots == 2 * ROBOTS
    received = gathered(fleet, {0, 1})
    # By chance as long as there are no weights; every action is one that the robot can do.
    actions = np.concatenate([e.result.actions for e in received])
    assert len(np.unique(actions[:, 0])) > 5
    assert (actions[:, 1] == 0.0).all()
    # In an episode the next step begins where this one ended, whoever drove it where.
    for one in (0, 1):
        own = [e for e in received if e.robots[0] // ROBOTS == one]
        for earlier, later in itertools.pairwise(own):
            going = ~(earlier.result.terminated | earlier.result.truncated)
            np.testing.assert_array_equal(earlier.result.triplets.scan[going], later.before.scan[going])
            np.testing.assert_array_equal(earlier.result.triplets.goal[going], later.before.goal[going])
    assert not np.array_equal(received[0].before.goal, gathered(fleet, {0, 1})[-1].before.goal)

    # Weights of a policy that always drives at full speed and turns left.
    agent = SacAeCaps(made.observation, np.array([True, False, True]), made.config.agent, 0)
    weights = {name: np.zeros_like(v.numpy()) for name, v in agent.network.state_dict().items()}
    weights["actor.out.bias"] = np.array([20.0, 0.0, 20.0, -20.0, -20.0, -20.0], np.float32)
    fleet.send(weights)
    for _ in range(20):
        received = gathered(fleet, {0, 1})
    assert all((e.result.actions[:, [0, 2]] > 0.99).all() for e in received)

    # One dies as if its machine had; what comes later is of another life, with other robots.
    process = ray.get(fleet._workers[0].__ray_call__.remote(lambda _: os.getpid()))
    os.kill(process, signal.SIGKILL)
    received = gathered(fleet, {1, 2})
    assert fleet.replaced == 1
    assert {int(e.robots[0]) // ROBOTS for e in received} <= {0, 1, 2}
    replay = ReplayBuffer(500, made.observation.scan_shape, 0, 3)
    for experience in received:
        replay.add(experience.before, experience.result, experience.robots)
    assert replay.rejected == 0
    fleet.close()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cluster")
def test_a_run_on_ray_trains_publishes_and_resumes(tmp_path: Path) -> None:
    def train(steps: int, resume: bool) -> None:
        training.train(
            robot=resources.find("robot", "generic_diff"),
            config=resources.root() / "config" / "train.yaml",
            out=tmp_path / "run",
            seed=1,
            steps=steps,
            overrides=SMALL,
            resume=resume,
            ray="local",
            workers=1,
        )

    train(300, resume=False)
    state = checkpoint.read_state(tmp_path / "run" / "training")
    assert state["steps"] >= 300
    # One update for each step of the fleet after the warm-up, or fewer where workers were faster.
    assert 0 < state["agent"]["updates"] <= (state["steps"] - 60) / ROBOTS + 4
    assert checkpoint.load_policy(tmp_path / "run").robot.name == "generic_diff"
    train(400, resume=True)
    assert checkpoint.read_state(tmp_path / "run" / "training")["steps"] >= 400
