"""Motion, contacts and odometry against hand-computed cases."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.generate import clutter
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import Disc, Solid, box, build_world, wall
from scanpilot.types import DoubleArray

CIRCLE = Footprint(radius=0.2)
JACKAL = Footprint(polygon=((-0.254, -0.215), (0.254, -0.215), (0.254, 0.215), (-0.254, 0.215)))
EMPTY = build_world("empty", bounds=(-10.0, -10.0, 10.0, 10.0))


def robot(**changes: object) -> RobotSpec:
    values: dict[str, object] = {
        "name": "test",
        "kinematics": "differential",
        "footprint": CIRCLE,
        "limits": Limits(vx=2.0, wz=2.0),
        "lidar": Lidar(beams=8),
    }
    return RobotSpec(**{**values, **changes})  # type: ignore[arg-type]


def drive(
    simulator: Simulator, command: tuple[float, float, float], duration: float, steps: int = 1
) -> list[bool]:
    commands = np.tile(np.array(command), (simulator.num_robots, 1))
    return [bool(simulator.step(commands, duration)[0]) for _ in range(steps)]


def placed(
    world=EMPTY, spec: RobotSpec | None = None, *poses: tuple[float, float, float], **config
) -> Simulator:  # type: ignore[no-untyped-def]
    poses = poses or ((0.0, 0.0, 0.0),)
    simulator = Simulator([world], spec or robot(), len(poses), SimulatorConfig(**config))
    simulator.place(np.arange(len(poses)), np.array(poses))
    return simulator


def test_arc_is_exact_and_does_not_depend_on_the_step() -> None:
    once, often = placed(), placed()
    drive(once, (1.0, 0.0, 0.5), 2.0)
    drive(often, (1.0, 0.0, 0.5), 0.01, 200)
    # Radius v / w = 2, turned by 1 rad.
    expected = [2.0 * math.sin(1.0), 2.0 * (1.0 - math.cos(1.0)), 1.0]
    assert once.poses[0] == pytest.approx(expected, abs=1e-12)
    assert often.poses[0] == pytest.approx(expected, abs=1e-9)


def test_stage_steps_with_the_old_heading() -> None:
    simulator = placed(stage=True)
    drive(simulator, (1.0, 0.0, 0.5), 0.1, 2)
    assert simulator.poses[0] == pytest.approx(
        [0.1 + 0.1 * math.cos(0.05), 0.1 * math.sin(0.05), 0.1], abs=1e-12
    )


def test_heading_stays_wrapped() -> None:
    simulator = placed(EMPTY, None, (0.0, 0.0, 3.0))
    drive(simulator, (0.0, 0.0, 1.0), 0.2, 2)
    assert simulator.poses[0, 2] == pytest.approx(3.4 - 2 * math.pi)


def test_velocity_ramps_from_what_it_is() -> None:
    spec = robot(limits=Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0))
    simulator = placed(EMPTY, spec)
    drive(simulator, (1.0, 0.0, 1.5), 0.2)
    assert simulator.twists[0] == pytest.approx([0.4, 0.0, 0.8])
    assert math.hypot(*simulator.poses[0, :2]) == pytest.approx(0.04, abs=1e-4)
    drive(simulator, (1.0, 0.0, 0.0), 0.2)
    assert simulator.twists[0] == pytest.approx([0.8, 0.0, 0.0])
    drive(simulator, (9.0, 0.0, 0.0), 0.2)
    # Limited to 1 m/s after 0.1 s: 0.8..1 over 0.1 s, then 1 for 0.1 s.
    assert simulator.twists[0, 0] == pytest.approx(1.0)
    drive(simulator, (0.0, 0.0, 0.0), 0.2)
    assert simulator.twists[0, 0] == pytest.approx(0.6)


def test_ramp_covers_the_exact_distance() -> None:
    simulator = placed(EMPTY, robot(limits=Limits(vx=1.0, wz=1.5, ax=2.0)))
    drive(simulator, (1.0, 0.0, 0.0), 0.7)
    # 0.25 m while speeding up for 0.5 s, then 0.2 m.
    assert simulator.poses[0, 0] == pytest.approx(0.45, abs=1e-12)


def test_omnidirectional_moves_sideways_and_differential_does_not() -> None:
    omni = placed(EMPTY, robot(kinematics="omnidirectional", limits=Limits(vx=1.0, vy=0.5, wz=1.0)))
    drive(omni, (0.0, -2.0, 0.0), 1.0)
    assert omni.poses[0] == pytest.approx([0.0, -0.5, 0.0])
    differential = placed()
    drive(differential, (0.0, 1.0, 0.0), 1.0)
    assert differential.poses[0] == pytest.approx([0.0, 0.0, 0.0])


def test_car_turns_no_tighter_than_its_radius() -> None:
    car = placed(EMPTY, robot(kinematics="car", turning_radius=2.0))
    drive(car, (0.0, 0.0, 1.0), 1.0)
    assert car.poses[0] == pytest.approx([0.0, 0.0, 0.0])
    drive(car, (1.0, 0.0, 1.0), 1.0)
    assert car.poses[0, 2] == pytest.approx(0.5)


@pytest.mark.parametrize("delay", [0.1, 0.15, 0.35])
def test_commands_act_after_the_delay(delay: float) -> None:
    simulator = placed(EMPTY, robot(actuation_delay=delay))
    drive(simulator, (1.0, 0.0, 0.0), 0.1, 5)
    assert simulator.poses[0, 0] == pytest.approx(0.5 - delay, abs=1e-9)
    drive(simulator, (0.0, 0.0, 0.0), 0.1, 5)
    assert simulator.poses[0, 0] == pytest.approx(0.5, abs=1e-9)


def test_placing_cancels_commands_on_their_way() -> None:
    simulator = placed(EMPTY, robot(actuation_delay=0.3))
    drive(simulator, (1.0, 0.0, 0.0), 0.1, 2)
    simulator.place([0], np.array([[1.0, 1.0, 0.0]]))
    drive(simulator, (0.0, 0.0, 0.0), 0.1, 5)
    assert simulator.poses[0].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("footprint", [CIRCLE, JACKAL])
@pytest.mark.parametrize("thickness", [0.0, 0.01, 0.5])
def test_no_tunnelling(footprint: Footprint, thickness: float) -> None:
    front = 0.2 if footprint is CIRCLE else 0.254
    solid = (
        wall(1.0, -5.0, 1.0, 5.0)
        if thickness == 0.0
        else Solid((box(1.0 + thickness / 2, 0.0, thickness, 10.0),))
    )
    simulator = placed(build_world("wall", [solid]), robot(footprint=footprint), (0.637, 0.0, 0.0))
    contacts = drive(simulator, (2.0, 0.0, 0.0), 0.1, 3)
    assert contacts == [True, True, True]
    assert simulator.twists[0].tolist() == [0.0, 0.0, 0.0]
    assert 0.0 < 1.0 - front - simulator.poses[0, 0] < 3e-3
    # And it gets away again.
    assert drive(simulator, (-1.0, 0.0, 0.0), 0.1) == [False]
    assert simulator.poses[0, 0] < 1.0 - front - 0.09


def test_driving_along_a_wall_is_no_contact() -> None:
    world = build_world("wall", [wall(-5.0, 0.2005, 5.0, 0.2005)])
    simulator = placed(world, None, (-1.0, 0.0, 0.0))
    assert not any(drive(simulator, (2.0, 0.0, 0.0), 0.1, 8))
    assert simulator.poses[0, 0] == pytest.approx(0.6)


def test_rotating_a_long_robot_into_a_wall() -> None:
    spec = robot(footprint=Footprint(polygon=((-0.5, -0.1), (0.5, -0.1), (0.5, 0.1), (-0.5, 0.1))))
    simulator = placed(build_world("wall", [wall(-5.0, 0.3, 5.0, 0.3)]), spec)
    contacts = drive(simulator, (0.0, 0.0, 1.0), 0.1, 10)
    assert contacts[-1]
    # The corner (0.5, 0.1) reaches y = 0.3: 0.5 sin t + 0.1 cos t = 0.3.
    touching = math.asin(0.3 / math.hypot(0.5, 0.1)) - math.atan2(0.1, 0.5)
    assert touching - 0.01 < simulator.poses[0, 2] < touching


def test_head_on_robots_stop_at_each_other() -> None:
    simulator = placed(EMPTY, None, (-1.0, 0.0, 0.0), (1.0, 0.0, math.pi))
    for _ in range(10):
        contacts = simulator.step(np.tile([1.0, 0.0, 0.0], (2, 1)), 0.2)
    assert contacts.all()
    gap = simulator.poses[1, 0] - simulator.poses[0, 0] - 0.4
    assert 0.0 < gap < 3e-3
    assert simulator.clearance() == pytest.approx([gap, gap])
    assert abs(simulator.poses[0, 0] + simulator.poses[1, 0]) < 0.11  # met within one substep of the middle


def test_clearance_of_circle_and_polygon() -> None:
    world = build_world("things", [Solid((box(3.0, 0.0, 1.0, 1.0),))], [Disc(0.0, 2.0, 0.5)])
    assert placed(world).clearance()[0] == pytest.approx(1.3)
    assert placed(world, robot(footprint=JACKAL)).clearance()[0] == pytest.approx(1.5 - 0.215)
    assert placed(world, robot(footprint=JACKAL), (0.0, 0.0, math.pi / 2)).clearance()[0] == pytest.approx(
        1.246
    )
    far = placed(world, None, (-40.0, 0.5, 0.0)).clearance()[0]
    assert far == pytest.approx(math.hypot(40.0, 1.5) - 0.7)
    assert placed(EMPTY).clearance()[0] == math.inf


def test_odometry_follows_and_survives_a_teleport() -> None:
    simulator = placed(EMPTY, None, (5.0, 5.0, math.pi / 2))
    drive(simulator, (1.0, 0.0, 0.5), 2.0)
    expected = [2.0 * math.sin(1.0), 2.0 * (1.0 - math.cos(1.0)), 1.0]
    assert simulator.odometry[0] == pytest.approx(expected)
    simulator.place([0], np.array([[-3.0, 0.0, 0.0]]))
    assert simulator.odometry[0] == pytest.approx(expected)
    simulator.reset_odometry([0])
    assert simulator.odometry[0].tolist() == [0.0, 0.0, 0.0]


def test_odometry_drift_is_a_constant_factor() -> None:
    simulator = placed(odometry_drift=0.05)
    drive(simulator, (1.0, 0.0, 0.0), 1.0)
    first = simulator.odometry[0, 0]
    drive(simulator, (1.0, 0.0, 0.0), 1.0)
    assert simulator.odometry[0, 0] == pytest.approx(2.0 * first)
    assert first != 1.0
    assert abs(first - 1.0) < 0.25


def test_bad_input_is_named() -> None:
    simulator = placed()
    with pytest.raises(ValueError, match="shape"):
        simulator.step(np.zeros((2, 3)), 0.1)
    with pytest.raises(ValueError, match="finite"):
        simulator.step(np.array([[math.nan, 0.0, 0.0]]), 0.1)
    with pytest.raises(ValueError, match="finite"):
        simulator.place([0], np.array([[math.nan, 0.0, 0.0]]))
    with pytest.raises(ValueError, match="duration"):
        simulator.step(np.zeros((1, 3)), 0.0)
    with pytest.raises(ValueError, match="scan_dropout"):
        SimulatorConfig(scan_dropout=2.0)


def _start(worlds: list[int], spec: RobotSpec, robots: int, config: SimulatorConfig, seed: int) -> Simulator:
    made = [clutter(w) for w in worlds]
    simulator = Simulator(made, spec, robots, config, seed, streams=worlds)
    for slot, world in enumerate(made):
        space, rng = FreeSpace(world, spec.footprint), np.random.default_rng(worlds[slot])
        for i in range(slot * robots, (slot + 1) * robots):
            start, _ = space.sample(rng, taken=simulator.poses[slot * robots : i])
            simulator.place([i], start[None])
    return simulator


def _run(simulator: Simulator, commands: DoubleArray) -> list[np.ndarray]:
    seen: list[np.ndarray] = []
    for command in commands:
        contacts = simulator.step(command, 0.2)
        seen += [contacts.copy(), simulator.scan(), simulator.poses.copy(), simulator.odometry.copy()]
        assert (simulator.clearance() > 0.0).all()
    return seen


NOISY = SimulatorConfig(
    scan_noise=0.02,
    scan_dropout=0.05,
    scan_short=0.02,
    odometry_drift=0.02,
    velocity_error=0.02,
    scan_latency=0.05,
    scan_duration=0.1,
    actuation_delay=0.15,
    lidar_offset_error=0.02,
    lidar_yaw_error=0.05,
    vary=True,
)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), polygon=st.booleans(), threads=st.integers(1, 2))
def test_batched_equals_single_equals_again_and_nothing_overlaps(
    seed: int, polygon: bool, threads: int
) -> None:
    spec = robot(footprint=JACKAL if polygon else CIRCLE, limits=Limits(vx=2.0, wz=2.0, ax=4.0, awz=8.0))
    rng = np.random.default_rng(seed)
    commands = rng.uniform((0.0, 0.0, -2.0), (2.0, 0.0, 2.0), (25, 12, 3))
    config = SimulatorConfig(**{**NOISY.__dict__, "threads": threads})
    worlds = [seed, seed + 1, seed + 2]
    together = _run(_start(worlds, spec, 4, config, seed), commands)
    again = _run(_start(worlds, spec, 4, NOISY, seed), commands)
    assert all(np.array_equal(a, b) for a, b in zip(together, again, strict=True))
    alone = _run(_start([seed + 1], spec, 4, NOISY, seed), commands[:, 4:8])
    assert all(np.array_equal(a[4:8], b) for a, b in zip(together, alone, strict=True))


def test_noise_has_the_stated_size() -> None:
    world = build_world("wall", [wall(2.0, -50.0, 2.0, 50.0)])
    spec = robot(lidar=Lidar(beams=2000, angle_min=-0.01, angle_max=0.01, range_max=10.0))
    simulator = placed(world, spec, scan_noise=0.05, scan_dropout=0.1)
    ranges = simulator.scan()[0]
    assert np.mean(ranges == 10.0) == pytest.approx(0.1, abs=0.03)
    assert np.std(ranges[ranges < 10.0]) == pytest.approx(0.05, rel=0.1)
    assert not np.array_equal(ranges, simulator.scan()[0])


def test_worlds_are_swapped_and_slots_grow() -> None:
    simulator = placed(EMPTY)
    assert simulator.clearance()[0] == math.inf
    simulator.set_worlds([0], [build_world("box", [Solid((box(3.0, 0.0, 1.0, 1.0),))])])
    assert simulator.clearance()[0] == pytest.approx(2.3)
    simulator.set_worlds([0], [clutter(3)])
    simulator.set_worlds([0], [EMPTY])
    assert simulator.clearance()[0] == math.inf
    assert (simulator.scan() == 10.0).all()


def test_moving_discs_are_seen_and_hit() -> None:
    simulator = Simulator([EMPTY], robot(lidar=Lidar(beams=4)), 1, movers=2)
    simulator.set_movers(np.array([[[1.0, 0.0, 0.3], [0.0, 0.0, -1.0]]]))
    assert simulator.scan()[0, 2] == pytest.approx(0.7)
    assert simulator.clearance()[0] == pytest.approx(0.5)
    assert drive(simulator, (2.0, 0.0, 0.0), 0.4) == [True]
    assert simulator.poses[0, 0] == pytest.approx(0.5, abs=3e-3)


def test_latency_shows_the_world_as_it_was() -> None:
    world = build_world("wall", [wall(5.0, -5.0, 5.0, 5.0)])
    spec = robot(lidar=Lidar(beams=4, range_max=20.0))
    late = placed(world, spec, scan_latency=0.25)
    for _ in range(5):
        drive(late, (1.0, 0.0, 0.0), 0.1)
    assert late.poses[0, 0] == pytest.approx(0.5)
    assert late.scan()[0, 2] == pytest.approx(5.0 - 0.25)
    late.place([0], np.array([[2.0, 0.0, 0.0]]))
    assert late.scan()[0, 2] == pytest.approx(3.0)


def test_late_scans_show_walkers_where_they_were() -> None:
    simulator = Simulator(
        [EMPTY], robot(lidar=Lidar(beams=4)), 1, SimulatorConfig(scan_latency=0.15), movers=1
    )
    simulator.place([0], np.zeros((1, 3)))
    simulator.set_movers(np.array([[[1.0, 0.0, 0.3]]]))
    for _ in range(3):
        simulator.walk(np.array([[[9.0, 0.0]]]), np.ones((1, 1)), 0.1, 0.0)
        drive(simulator, (0.0, 0.0, 0.0), 0.1)
    assert simulator.movers()[0, 0, 0] == pytest.approx(1.3)
    assert simulator.scan()[0, 2] == pytest.approx(1.15 - 0.3)
    simulator.set_movers(np.array([[[2.0, 0.0, 0.3]]]))
    assert simulator.scan()[0, 2] == pytest.approx(1.7)


def test_a_scan_that_takes_time_is_smeared() -> None:
    world = build_world("wall", [wall(5.0, -50.0, 5.0, 50.0)])
    lidar = Lidar(beams=8, angle_min=-0.001, angle_max=0.001, range_max=20.0)
    slow = placed(world, robot(lidar=lidar), scan_duration=0.4)
    for _ in range(6):
        drive(slow, (1.0, 0.0, 0.0), 0.1)
    # Eight beams at 0.375, 0.325, ... 0.025 s ago.
    assert slow.scan()[0] == pytest.approx(4.4 + np.arange(0.375, 0.0, -0.05), abs=1e-5)


def test_errors_are_drawn_when_a_robot_is_placed() -> None:
    simulator = placed(EMPTY, None, (0.0, 0.0, 0.0), (0.0, 3.0, 0.0), velocity_error=0.1)
    drive(simulator, (1.0, 0.0, 0.0), 1.0)
    first = simulator.poses[:, 0].copy()
    assert len(set(np.round(first, 9))) == 2
    assert (np.abs(first - 1.0) < 0.5).all()
    simulator.place([0], np.zeros((1, 3)))
    drive(simulator, (1.0, 0.0, 0.0), 1.0)
    assert simulator.poses[0, 0] != pytest.approx(first[0])
    assert simulator.poses[1, 0] == pytest.approx(2.0 * first[1])


def test_vary_gives_each_robot_its_share_of_noise() -> None:
    world = build_world("wall", [wall(2.0, -50.0, 2.0, 50.0)])
    spec = robot(lidar=Lidar(beams=500, angle_min=-0.01, angle_max=0.01, range_max=10.0))
    poses = [(0.0, 3.0 * k, 0.0) for k in range(12)]
    deviations = placed(world, spec, *poses, scan_noise=0.1, vary=True).scan().std(axis=1)
    assert deviations.max() < 0.11
    assert deviations.min() < 0.05
    assert len(set(np.round(deviations, 3))) > 6


def test_a_restored_simulator_goes_on_to_the_last_digit() -> None:
    spec = robot(actuation_delay=0.15, limits=Limits(vx=1.0, wz=2.0, ax=2.0, awz=4.0))
    commands = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 4, 3))
    first = _start([1, 2], spec, 2, NOISY, 7)
    _run(first, commands[:10])
    state = copy.deepcopy(first.state_dict())
    expected = _run(first, commands[10:])
    other = _start([1, 2], spec, 2, NOISY, 7)
    other.load_state_dict(state)
    assert all(np.array_equal(a, b) for a, b in zip(expected, _run(other, commands[10:]), strict=True))


def _apart(count: int, **config: object) -> Simulator:
    """Robots 3 m apart beside a wall at x = 2, each with one beam straight at it."""
    world = build_world("wall", [wall(2.0, -500.0, 2.0, 500.0)])
    spec = robot(lidar=Lidar(beams=1, angle_min=0.0, angle_max=0.1, range_max=10.0))
    return placed(world, spec, *[(0.0, 3.0 * k, 0.0) for k in range(count)], **config)


def test_lidars_sit_where_they_sit_until_a_robot_is_placed() -> None:
    simulator = _apart(60, lidar_offset_error=0.1)
    offsets = 2.0 - simulator.scan()[:, 0]
    assert np.std(offsets) == pytest.approx(0.1, rel=0.3)
    assert np.array_equal(2.0 - simulator.scan()[:, 0], offsets)
    simulator.place([3], np.array([[0.0, 9.0, 0.0]]))
    again = 2.0 - simulator.scan()[:, 0]
    assert np.flatnonzero(again != offsets).tolist() == [3]


def test_lidars_are_turned_as_much_as_stated() -> None:
    # A wall seen at an angle e is 2 / cos(e) away.
    turned = np.arccos(2.0 / _apart(60, lidar_yaw_error=0.2).scan()[:, 0].astype(np.float64))
    assert np.sqrt(np.mean(turned**2)) == pytest.approx(0.2, rel=0.3)


def test_a_robot_has_several_lidars_each_with_its_own_mount() -> None:
    room = build_world("room", [wall(2.0, -5.0, 2.0, 5.0), wall(-3.0, -5.0, -3.0, 5.0)])
    front = Lidar(beams=1, angle_min=0.0, angle_max=0.1, range_max=10.0, x=0.5)
    back = Lidar(beams=1, angle_min=0.0, angle_max=0.1, range_max=10.0, x=-0.25, yaw=math.pi)
    simulator = placed(room, robot(lidar=front))
    assert simulator.scan()[0, 0] == pytest.approx(1.5)
    assert simulator.scan(back)[0, 0] == pytest.approx(2.75)
    uneven = placed(room, robot(lidar=front), lidar_offset_error=0.1)
    assert uneven.scan()[0, 0] - 1.5 != pytest.approx(uneven.scan(back)[0, 0] - 2.75)


@pytest.mark.parametrize("own", [0.0, 0.1])
def test_the_added_delay_comes_on_top_of_the_robots_own(own: float) -> None:
    simulator = placed(EMPTY, robot(actuation_delay=own), actuation_delay=0.15)
    drive(simulator, (1.0, 0.0, 0.0), 0.1, 5)
    assert simulator.poses[0, 0] == pytest.approx(0.5 - own - 0.15, abs=1e-9)


def test_vary_gives_each_robot_quarters_of_the_added_delay_and_of_the_latency() -> None:
    config = {"actuation_delay": 0.2, "scan_latency": 0.1, "vary": True}
    simulator = _apart(60, **config)
    drive(simulator, (1.0, 0.0, 0.0), 0.1, 6)
    delays = 0.6 - simulator.poses[:, 0]
    assert sorted(set(np.round(delays, 6))) == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])
    # At 1 m/s a scan that is so many seconds old says so many metres too much.
    lateness = simulator.scan()[:, 0] - (2.0 - simulator.poses[:, 0])
    assert sorted(set(np.round(lateness, 4))) == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1])
    assert abs(np.corrcoef(delays, lateness)[0, 1]) < 0.4


@pytest.mark.parametrize("stage", [False, True])
@pytest.mark.parametrize("duration", [0.0, 0.1])
def test_some_robots_scan_what_they_would_among_all(stage: bool, duration: float) -> None:
    config = SimulatorConfig(**{**NOISY.__dict__, "scan_duration": duration, "stage": stage})
    commands = np.random.default_rng(0).uniform(0.0, 1.0, (3, 6, 3))
    all_at_once, some = (_start([1, 2], robot(), 3, config, 7) for _ in range(2))
    for simulator in (all_at_once, some):
        for command in commands:
            simulator.step(command, 0.2)
    ranges = all_at_once.scan()
    assert np.array_equal(some.scan(robots=[4, 0, 3]), ranges[[4, 0, 3]])
    # The others have not scanned yet: theirs is the same whether those did or not.
    rest = np.array([False, True, True, False, False, True])
    assert np.array_equal(some.scan(robots=rest), ranges[rest])
    assert some.scan(robots=[]).shape == (0, 8)
    with pytest.raises(IndexError):
        some.scan(robots=[6])
