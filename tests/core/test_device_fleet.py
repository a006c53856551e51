"""The fleet of tensors against the arithmetic that it repeats, and against its own promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("warp", reason="warp-lang is not installed (extra 'cuda')")

import torch
from torch import Tensor

from scanpilot import command, device_fleet
from scanpilot.device_fleet import DeviceFleet
from scanpilot.fleet import FleetConfig
from scanpilot.geometry import relative_poses
from scanpilot.observation import ObservationSpec, ScanResampler, guide_for, observation_for
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import sources
from scanpilot.sim.free_space import NoRoom
from scanpilot.sim.simulator import SimulatorConfig
from scanpilot.sim.walkers import WalkerConfig
from scanpilot.task import TaskConfig, judge
from scanpilot.types import StepResult

ROBOT = RobotSpec(
    name="test",
    kinematics="differential",
    footprint=Footprint(radius=0.2),
    limits=Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0),
    lidar=Lidar(beams=90),
)
CONFIG = FleetConfig(worlds=3, robots_per_world=4, world_lifetime=0, goal_distance=(1.0, 6.0))


def fleet(
    seed: int = 0, robot: RobotSpec = ROBOT, device: str = "cpu", guidance: bool = False, **config: Any
) -> DeviceFleet:
    return DeviceFleet(
        sources.worlds("clutter", "training", 0),
        robot,
        observation_for(robot, beams=60, frames=3, guidance=guidance),
        TaskConfig(time_limit=25),
        replace(CONFIG, **config),
        seed,
        device=device,
    )


def host(tensor: Any) -> Any:
    return tensor.numpy()


def drive(of: DeviceFleet, steps: int, seed: int = 0) -> list[StepResult]:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([1.0, 2.0, 2.0])
    low = torch.tensor([0.0, -1.0, -1.0])
    actions = low + spread * torch.rand((steps, of.num_robots, 3), generator=generator)
    return [of.step(action) for action in actions]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_rewards_and_ends_are_those_of_the_task(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 16
    distance, next_distance = rng.uniform(0.0, 2.0, (2, n))
    clearance = rng.uniform(-0.1, 0.5, n)
    contact, steps = rng.random(n) < 0.3, rng.integers(20, 30, n)
    config = TaskConfig(time_limit=25)
    expected = judge(distance, next_distance, clearance, contact, steps, config)
    tensors = [torch.from_numpy(a) for a in (distance, next_distance, clearance, contact, steps)]
    rewards, reached, truncated = device_fleet.judge(*tensors, config)
    assert rewards.numpy() == pytest.approx(expected.rewards, abs=1e-6)
    assert (reached.numpy() == expected.reached).all()
    assert (truncated.numpy() == expected.truncated).all()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_goals_are_seen_as_elsewhere(seed: int) -> None:
    targets, origins = np.random.default_rng(seed).uniform(-7.0, 7.0, (2, 9, 3))
    seen = device_fleet.relative_poses(torch.from_numpy(targets), torch.from_numpy(origins))
    assert seen.numpy() == pytest.approx(relative_poses(targets, origins), abs=1e-12)


LIDARS = {
    "all round": Lidar(beams=90),
    "dense": Lidar(beams=720, angle_min=-2.3, angle_max=2.3, range_max=30.0),
    "turned, sparse": Lidar(beams=30, angle_min=-1.5, angle_max=1.5, yaw=1.0),
    "off centre": Lidar(beams=180, x=0.15, y=-0.05, yaw=3.1),
}
SPECS = {
    "robot's": lambda robot: observation_for(robot, beams=60),
    "narrower": lambda robot: ObservationSpec(beams=40, angle_min=-1.0, angle_max=1.2),
}


@pytest.mark.parametrize("lidar", LIDARS)
@pytest.mark.parametrize("spec", SPECS)
def test_scans_are_resampled_as_elsewhere(lidar: str, spec: str) -> None:
    robot = replace(ROBOT, lidar=LIDARS[lidar])
    observation = SPECS[spec](robot)
    at = robot.lidar
    resample = ScanResampler(
        observation, at.angle_min, at.angle_increment, at.beams, at.range_min, at.range_max, at.mount
    )
    rng = np.random.default_rng(0)
    ranges = rng.uniform(0.0, 1.2 * at.range_max, (20, at.beams)).astype(np.float32)
    ranges[rng.random(ranges.shape) < 0.1] = at.range_max
    ranges[rng.random(ranges.shape) < 0.05] = 0.01
    beams = device_fleet._Beams(observation, robot, torch.device("cpu"))
    assert beams(torch.from_numpy(ranges)).numpy() == pytest.approx(resample(ranges), abs=1e-6)


def test_actions_are_executed_as_elsewhere_and_nonsense_stops() -> None:
    of = fleet()
    actions = np.random.default_rng(0).uniform(-2.0, 2.0, (12, 3)).astype(np.float32)
    result = of.step(torch.from_numpy(actions))
    assert (host(result.actions) == command.executed_actions(actions, ROBOT)).all()
    assert not host(result.info["invalid"]).any()
    actions[3, 2] = np.nan
    result = of.step(torch.from_numpy(actions))
    assert host(result.info["invalid"]).tolist() == [i == 3 for i in range(12)]
    assert (result.actions[3] == 0.0).all()
    assert np.isfinite(host(result.rewards)).all()


def test_who_is_done_begins_anew_and_its_last_triplet_is_its_own() -> None:
    of = fleet()
    ends = 0
    for action in torch.rand((60, 12, 3), generator=torch.Generator().manual_seed(1)):
        before = of.observe()
        result = of.step(action * torch.tensor([1.0, 0.0, 2.0]) - torch.tensor([0.0, 0.0, 1.0]))
        after: Any = of.observe()
        ended = result.terminated | result.truncated
        assert not (result.terminated & result.truncated).any()
        # True successors: the older frames of a triplet are the newer ones of the one before.
        assert (result.triplets.scan[:, :-1] == before.scan[:, 1:]).all()
        assert (after.scan[~ended] == result.triplets.scan[~ended]).all()
        assert (after.scan[ended] == after.scan[ended][:, :1]).all()
        assert (after.speed[ended] == 0.0).all()
        distance = torch.linalg.vector_norm(after.goal[ended][:, :2], dim=1)
        assert ((distance >= 0.999) & (distance <= 6.001)).all()
        assert (result.info["clearance"][~result.collided] > 0.0).all()
        ends += int(ended.sum())
    assert ends > 12
    assert (of.simulator.clearance() > 0.0).all()


def test_guidance_is_that_of_the_guide() -> None:
    of = fleet(guidance=True)
    guide = guide_for(of.observation, 12)
    assert guide is not None
    begun: Any = of.observe()
    told = guide(begun.scan[:, -1].numpy(), begun.goal.numpy(), host(of.simulator.poses))
    assert begun.guidance.numpy() == pytest.approx(told)
    for result in drive(of, 4):
        seen: Any = result.triplets
        told = guide(seen.scan[:, -1].numpy(), seen.goal.numpy(), host(result.info["poses"]))
        under_way = host(~(result.terminated | result.truncated))
        assert seen.guidance.numpy()[under_way] == pytest.approx(told[under_way], abs=1e-5)
        if not under_way.all():
            break


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    first, again, other = (drive(fleet(seed), 8) for seed in (0, 0, 1))
    assert torch.equal(_scan(first[-1]), _scan(again[-1]))
    assert not torch.equal(_scan(first[-1]), _scan(other[-1]))


def test_worlds_give_way() -> None:
    of = fleet(world_lifetime=9)
    results = drive(of, 10)
    # One every three steps: the last at 3, the one before at 6, the first at 9.
    assert of.world_numbers == [5, 4, 3]
    assert (results[2].truncated | results[2].terminated)[8:].all()
    assert of.space_of(0).is_free(host(of.goals[:4])).all()
    assert of.world_of(11) is of.simulator.worlds[2]


def test_a_restored_fleet_goes_on_to_the_last_digit() -> None:
    noisy = SimulatorConfig(
        scan_noise=0.02, scan_dropout=0.05, velocity_error=0.05, scan_latency=0.05, vary=True
    )
    first = fleet(world_lifetime=7, simulator=noisy)
    drive(first, 10)
    state = first.state_dict()
    expected = drive(first, 10, seed=5)
    other = fleet(world_lifetime=7, simulator=noisy)
    other.load_state_dict(state)
    for a, b in zip(expected, drive(other, 10, seed=5), strict=True):
        assert torch.equal(_scan(a), _scan(b))
        assert (a.rewards == b.rewards).all()


def test_what_the_device_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="walkers"):
        fleet(walkers=WalkerConfig(count=1))
    with pytest.raises(ValueError, match="car"):
        fleet(robot=replace(ROBOT, kinematics="car", turning_radius=1.0))
    with pytest.raises(ValueError, match="stage"):
        fleet(simulator=SimulatorConfig(stage=True))
    with pytest.raises(NoRoom, match="new episodes"):
        fleet(goal_distance=(50.0, 60.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_step_never_waits_for_the_device() -> None:
    of = fleet(device="cuda", simulator=SimulatorConfig(scan_noise=0.01, scan_latency=0.05, vary=True))
    action = torch.rand((of.num_robots, 3), device="cuda")
    of.step(action)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [of.step(action) for _ in range(20)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(_scan(result).is_cuda and torch.isfinite(_scan(result)).all() for result in results)


def _scan(result: StepResult) -> Tensor:
    scan: Any = result.triplets.scan
    return torch.as_tensor(scan)
