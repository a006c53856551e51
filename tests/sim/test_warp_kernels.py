"""The kernels for CUDA against those for the processor, and against the same hand-computed cases.

All of it runs on Warp's processor device, so that no GPU is needed; the tests at the end also run on one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("warp", reason="warp-lang is not installed (extra 'cuda')")

import torch

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import generate
from scanpilot.sim.device_simulator import DeviceSimulator
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import Disc, Solid, World, box, build_world
from scanpilot.types import DoubleArray

CIRCLE = Footprint(radius=0.2)
JACKAL = Footprint(polygon=((-0.254, -0.215), (0.254, -0.215), (0.254, 0.215), (-0.254, 0.215)))


def host(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


class OnWarp:
    """A `DeviceSimulator` on the processor that shows its tensors as the arrays whose memory they share."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if any(isinstance(arg, SimulatorConfig) and arg.stage for arg in args):
            pytest.skip("Stage's ways are not on a GPU")
        self._simulator = DeviceSimulator(*args, device="cpu", **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._simulator, name)
        if callable(found):
            return lambda *args, **options: host(found(*args, **options))
        return host(found)


# --- the suite of the kernels for the processor, over these -------------------------------------------------


def suite(name: str) -> ModuleType:
    """Another test module of this folder, with the simulator on Warp in place of the one that it tests."""
    spec = importlib.util.spec_from_file_location(f"{name}_on_warp", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Simulator = OnWarp  # type: ignore[attr-defined]
    # Float32 geometry: a beam along a wall meets it a little later.
    module.ROUNDING = 1e-3  # type: ignore[attr-defined]
    return module


# One asks for more digits of a clearance than float32 has, one for an error where there must be no waiting,
# and one takes long here; all have their like below.
ELSEWHERE = (
    "test_head_on_robots_stop_at_each_other",
    "test_bad_input_is_named",
    "test_batched_equals_single_equals_again_and_nothing_overlaps",
)


def shared(module: ModuleType) -> Iterator[tuple[str, Callable[..., None]]]:
    for name, function in vars(module).items():
        if name.startswith("test_") and name not in ELSEWHERE:
            yield f"{name}_on_warp", function


motion, ranges = suite("test_motion"), suite("test_ranges")
for source in (motion, ranges):
    globals().update(shared(source))


# --- against the kernels for the processor ------------------------------------------------------------------


def robot(**changes: Any) -> RobotSpec:
    values: dict[str, Any] = {
        "name": "test",
        "kinematics": "differential",
        "footprint": CIRCLE,
        "limits": Limits(vx=2.0, wz=2.0, ax=4.0, awz=8.0),
        "lidar": Lidar(beams=180),
        **changes,
    }
    return RobotSpec(**values)


OMNI = robot(
    kinematics="omnidirectional",
    footprint=JACKAL,
    limits=Limits(vx=1.0, vy=1.0, wz=2.0, ax=3.0, ay=3.0, awz=6.0),
    lidar=Lidar(beams=90, angle_min=-2.0, angle_max=2.0, range_max=6.0, x=0.1, y=-0.05, yaw=0.3),
    actuation_delay=0.15,
)
CAR = robot(kinematics="car", turning_radius=0.8)
ROBOTS = {"circle": robot(), "omni": OMNI, "car": CAR}
GENERATORS = (generate.clutter, generate.maze, generate.cylinders)


def starts(worlds: list[World], spec: RobotSpec, robots: int, seed: int) -> DoubleArray:
    rng, poses = np.random.default_rng(seed), np.zeros((len(worlds) * robots, 3))
    for slot, world in enumerate(worlds):
        space = FreeSpace(world, spec.footprint)
        for i in range(slot * robots, (slot + 1) * robots):
            poses[i], _ = space.sample(rng, taken=poses[slot * robots : i], min_distance=0.0, spacing=0.05)
    return poses


def both(
    worlds: list[World], spec: RobotSpec, robots: int, seed: int, **config: Any
) -> tuple[Simulator, OnWarp]:
    pair = tuple(
        kind(worlds, spec, robots, SimulatorConfig(**config), seed, movers=2) for kind in (Simulator, OnWarp)
    )
    poses = starts(worlds, spec, robots, seed)
    for simulator in pair:
        simulator.place(np.arange(len(poses)), poses)
    return pair  # type: ignore[return-value]


def bounds_of_rounding(simulator: Simulator, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest ranges from poses that are a rounding error away."""
    poses, scans = simulator.poses.copy(), []
    for dx, dy, turn in ((0, 0, 1), (0, 0, -1), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0)):
        simulator.poses[:] = poses + distance * np.array((dx, dy, turn))
        scans.append(simulator.scan())
    simulator.poses[:] = poses
    return np.min(scans, axis=0), np.max(scans, axis=0)


@pytest.mark.parametrize("kind", ROBOTS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000))
def test_equal_to_the_kernels_for_the_processor(kind: str, seed: int) -> None:
    spec, robots, count = ROBOTS[kind], 5, 12
    worlds = [make(seed) for make in GENERATORS]
    numba, warp = both(worlds, spec, robots, seed)
    rng = np.random.default_rng(seed)
    movers = np.concatenate(
        (starts(worlds, robot(), 2, seed + 1).reshape(3, 2, 3)[:, :, :2], np.full((3, 2, 1), 0.1)), 2
    )
    low, high = (-0.5, -spec.limits.vy, -2.0), (spec.limits.vx, spec.limits.vy, 2.0)
    beams = contacts = different = far = 0
    for step in range(count):
        if step == count // 2:
            for simulator in (numba, warp):
                simulator.set_movers(movers)
        seen, other = numba.scan(), warp.scan()
        beyond = np.abs(seen - other) > 1e-4
        least, greatest = bounds_of_rounding(numba, 2e-5)
        assert ((other >= least - 1e-4) & (other <= greatest + 1e-4))[beyond].all()
        beams, far = beams + seen.size, far + int(beyond.sum())
        assert warp.clearance() == pytest.approx(numba.clearance(), abs=5e-6)
        commands = rng.uniform(low, high, (len(worlds) * robots, 3))
        met, met_too = numba.step(commands, 0.2), warp.step(commands, 0.2)
        contacts, different = contacts + met.size, different + int((met != met_too).sum())
        apart = np.abs(numba.poses - warp.poses).max(axis=1)
        # Two that stop at the same thing stop within 2 mm of it, at one free pose or at the next. Where one
        # brushes along it for longer, it does so within a hundredth of a millimetre.
        stopped = met | met_too
        different += int((stopped & (met == met_too) & (apart > 3e-3)).sum())
        assert apart[stopped].max(initial=0.0) < 0.1
        assert apart[~met & ~met_too].max(initial=0.0) < 1e-9
        assert np.abs(numba.twists - warp.twists)[met == met_too].max() < 1e-9
        # Go on from the same state, so that one difference is not counted twice.
        for name in ("poses", "twists", "odometry"):
            getattr(warp, name)[:] = getattr(numba, name)
    assert far <= 1e-3 * beams
    assert different <= 1


def test_noise_is_the_same() -> None:
    config = {
        "scan_noise": 0.05,
        "scan_noise_proportional": 0.01,
        "scan_dropout": 0.1,
        "scan_short": 0.05,
        "velocity_error": 0.1,
        "odometry_drift": 0.1,
        "lidar_offset_error": 0.02,
        "lidar_yaw_error": 0.02,
        "scan_latency": 0.12,
        "scan_duration": 0.1,
        "actuation_delay": 0.2,
        "vary": True,
    }
    numba, warp = both([generate.clutter(s) for s in range(2)], robot(), 4, 3, **config)
    commands = np.random.default_rng(0).uniform(-0.3, 0.5, (6, 8, 3))
    for command in commands:
        assert (numba.step(command, 0.2) == warp.step(command, 0.2)).all()
        assert np.abs(numba.poses - warp.poses).max() < 1e-6
        assert np.abs(numba.odometry - warp.odometry).max() < 1e-6
        difference = np.abs(numba.scan() - warp.scan())
        assert np.mean(difference > 1e-3) < 5e-3
        assert np.median(difference) < 1e-6


@pytest.mark.parametrize("beams", [1, 4])
def test_beams_along_borders_and_from_outside(beams: int) -> None:
    """Where rounding decides which tile a beam is in, and for robots that left the world."""
    world = build_world(
        "boxes", [Solid((box(x, y, 1.0, 1.0),)) for x in (-4, 4) for y in (-4, 4)], [Disc(0, 0, 0.5)]
    )
    spec = robot(lidar=Lidar(beams=beams, angle_min=0.0, angle_max=6.2831853, range_max=30.0))
    poses = np.array(
        [
            (x, y, yaw)
            for x in (-9.0, -4.0, -2.0, 0.0, 2.0, 9.0)
            for y in (-4.0, 0.0, 4.0)
            for yaw in (0.0, 0.3)
        ]
    )
    seen = []
    for kind in (Simulator, OnWarp):
        simulator = kind([world], spec, len(poses), SimulatorConfig(robots_visible=False))
        simulator.place(np.arange(len(poses)), poses)
        seen.append(simulator.scan())
    assert seen[1] == pytest.approx(seen[0], abs=1e-5)


def test_some_robots_scan_and_others_do_not() -> None:
    warp = DeviceSimulator([generate.clutter(1)], robot(), 4, SimulatorConfig(scan_noise=0.1), device="cpu")
    warp.place(np.arange(4), starts(warp.worlds, robot(), 4, 0))
    only = torch.tensor([True, False, True, False])
    masked = warp.scan(only=only).clone()
    again = warp.scan()
    # The noise of 0 and 2 goes on; 1 and 3 begin.
    assert not torch.equal(masked[0], again[0])
    rows = DeviceSimulator([generate.clutter(1)], robot(), 4, SimulatorConfig(scan_noise=0.1), device="cpu")
    rows.place(np.arange(4), starts(rows.worlds, robot(), 4, 0))
    assert torch.equal(rows.scan(robots=[2, 0]), masked[[2, 0]])


def test_batched_equals_single_equals_again_and_nothing_overlaps() -> None:
    spec = robot(footprint=JACKAL)
    commands = np.random.default_rng(0).uniform((0.0, 0.0, -2.0), (2.0, 0.0, 2.0), (12, 8, 3))
    worlds = [3, 4]
    together, again = (
        motion._run(motion._start(worlds, spec, 4, motion.NOISY, 5), commands) for _ in range(2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(together, again, strict=True))
    alone = motion._run(motion._start(worlds[1:], spec, 4, motion.NOISY, 5), commands[:, 4:])
    assert all(np.array_equal(a[4:], b) for a, b in zip(together, alone, strict=True))


def test_head_on_robots_stop_at_each_other() -> None:
    warp = OnWarp([build_world("empty", bounds=(-9.0, -9.0, 9.0, 9.0))], robot(), 2)
    warp.place([0, 1], np.array([(-1.0, 0.0, 0.0), (1.0, 0.0, np.pi)]))
    for _ in range(10):
        contacts = warp.step(np.tile([1.0, 0.0, 0.0], (2, 1)), 0.2)
    assert contacts.all()
    gap = warp.poses[1, 0] - warp.poses[0, 0] - 0.4
    assert 0.0 < gap < 3e-3
    assert warp.clearance() == pytest.approx([gap, gap], abs=1e-6)


def test_robots_that_are_told_nonsense_stop() -> None:
    warp = OnWarp([generate.crowd(0)], robot(), 2)
    warp.place([0, 1], starts(warp.worlds, robot(), 2, 0))
    before = warp.poses.copy()
    warp.step(np.array([[np.nan, 0.0, 0.0], [0.5, 0.0, 0.0]]), 0.2)
    assert (warp.poses[0] == before[0]).all()
    assert (warp.poses[1] != before[1]).any()


# --- starts and goals ---------------------------------------------------------------------------------------


def missions(
    worlds: list[World], robots: int, seed: int, ended: Any = None, streams: Any = None
) -> tuple[DeviceSimulator, torch.Tensor, torch.Tensor]:
    simulator = DeviceSimulator(
        worlds, robot(footprint=JACKAL), robots, seed=seed, device="cpu", streams=streams
    )
    simulator.set_free_spaces(range(len(worlds)), [FreeSpace(world, JACKAL) for world in worlds])
    n = simulator.num_robots
    begun, goals = torch.zeros((n, 3), dtype=torch.float64), torch.zeros((n, 3), dtype=torch.float64)
    everyone = torch.ones(n, dtype=torch.bool) if ended is None else ended
    simulator.draw_missions(everyone, begun, goals, min_distance=2.0, max_distance=6.0, spacing=0.3)
    return simulator, begun, goals


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000))
def test_missions_are_free_connected_and_apart(seed: int) -> None:
    worlds = [make(seed) for make in GENERATORS]
    simulator, begun, goals = missions(worlds, 6, seed)
    assert int(simulator.failures) == 0
    for slot, world in enumerate(worlds):
        space = FreeSpace(world, JACKAL)
        own = slice(6 * slot, 6 * slot + 6)
        for poses in (begun[own].numpy(), goals[own].numpy()):
            assert space.is_free(poses, 0.029).all()
            gaps = np.hypot(*(poses[:, None, :2] - poses[None, :, :2]).transpose(2, 0, 1))[
                np.triu_indices(6, 1)
            ]
            assert gaps.min() >= 2.0 * JACKAL.circumscribed_radius
        distance = np.hypot(*(begun[own, :2] - goals[own, :2]).numpy().T)
        assert distance.min() >= 2.0
        assert distance.max() <= 6.0
        assert all(
            np.isfinite(space.shortest_path_length(a, b))
            for a, b in zip(begun[own].numpy(), goals[own].numpy(), strict=True)
        )
    _, again, _ = missions(worlds, 6, seed)
    assert torch.equal(begun, again)
    _, alone, _ = missions(worlds[1:2], 6, seed, streams=[1])
    assert torch.equal(begun[6:12], alone)


def test_missions_are_spread_over_the_free_space() -> None:
    world = generate.crowd(3)
    _, begun, _ = missions([world] * 100, 1, 0)
    space = FreeSpace(world, JACKAL)
    columns = space.cells % space.free.shape[1]
    expected = space.origin[0] + (columns + 0.5) * space.resolution
    # A mean of 100 uniform numbers errs by less than 4 standard errors.
    assert abs(begun[:, 0].mean() - expected.mean()) < 4.0 * expected.std() / 10.0
    assert float(begun[:, 0].std()) == pytest.approx(expected.std(), rel=0.25)
    assert float(begun[:, 2].std()) == pytest.approx(np.pi / np.sqrt(3.0), rel=0.25)


def test_only_those_who_ended_get_new_missions_and_keep_clear_of_the_others() -> None:
    world = generate.clutter(5)
    simulator, begun, goals = missions([world], 6, 0)
    simulator.place_where(torch.ones(6, dtype=torch.bool), begun)
    old, old_goals = begun.clone(), goals.clone()
    ended = torch.tensor([False, True, False, False, True, False])
    simulator.draw_missions(ended, begun, goals, min_distance=2.0, max_distance=6.0, spacing=0.3)
    assert torch.equal(begun[~ended], old[~ended])
    assert torch.equal(goals[~ended], old_goals[~ended])
    assert (begun[ended] != old[ended]).all()
    gaps = torch.cdist(begun[ended, :2], begun[:, :2])
    assert float(gaps[gaps > 0].min()) >= 2.0 * JACKAL.circumscribed_radius


def test_a_robot_without_room_is_counted() -> None:
    walls = [Solid((box(0.0, y, 2.0, 0.2),)) for y in (-0.5, 0.5)] + [
        Solid((box(x, 0.0, 0.2, 1.2),)) for x in (-1.0, 1.0)
    ]
    simulator, begun, _ = missions([build_world("cell", walls)], 2, 0)
    assert int(simulator.failures) == 2
    assert (begun == 0.0).all()


# --- on a GPU, where there is one ---------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_equals_the_processor() -> None:
    worlds, spec = [make(0) for make in GENERATORS], robot(footprint=JACKAL)
    poses, rng = starts(worlds, spec, 5, 0), np.random.default_rng(0)
    pair = [DeviceSimulator(worlds, spec, 5, device=device) for device in ("cpu", "cuda")]
    for simulator in pair:
        simulator.place(np.arange(15), poses)
    for _ in range(20):
        commands = rng.uniform((-0.5, 0.0, -2.0), (2.0, 0.0, 2.0), (15, 3))
        contacts = [simulator.step(commands, 0.2).cpu() for simulator in pair]
        assert torch.equal(*contacts)
        assert (pair[0].scan() - pair[1].scan().cpu()).abs().quantile(0.999) < 1e-4
        state = pair[0].state_dict()
        assert np.abs(state["poses"] - pair[1].state_dict()["poses"]).max() < 3e-3
        pair[1].load_state_dict(state)
