"""Starts, goals, shortest paths; and how hard the generated worlds are."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import generate, straight
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.grid_kernels import has_way_ahead
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.world import Disc, Solid, World, box, build_world, wall

RADIUS = Footprint(radius=0.2)
BENCHMARK = RobotSpec(
    name="benchmark",
    kinematics="differential",
    footprint=RADIUS,
    limits=Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0),
    lidar=Lidar(beams=8),
    control_period=0.2,
)


def arena(*solids: Solid) -> World:
    return build_world("arena", [*generate._arena(10.0, 10.0), *solids])


def test_clearance_grid_is_exact() -> None:
    world = build_world(
        "things", [Solid((box(0.0, 0.0, 2.0, 2.0),))], [Disc(3.0, 0.0, 0.5)], bounds=(-4, -4, 4, 4)
    )
    space = FreeSpace(world, RADIUS)
    # Cell (row, column) = (40, 60) is centred on (2.05, 0.05).
    assert space.clearance[40, 60] == pytest.approx(math.hypot(0.95, 0.05) - 0.5, abs=1e-6)
    assert space.clearance[40, 40] == 0.0
    assert space.clearance[40, 70] == 0.0
    assert space.clearance[40, 25] == pytest.approx(1.45 - 1.0, abs=1e-6)
    assert space.clearance[0, 0] == 1.5


def test_a_hollow_solid_is_free_inside() -> None:
    world = build_world("ring", [Solid((box(0.0, 0.0, 6.0, 6.0), box(0.0, 0.0, 4.0, 4.0)))])
    space = FreeSpace(world, RADIUS)
    assert space.free[30, 30]
    assert not space.free[5, 5]
    assert space.is_free(np.array([[0.0, 0.0, 0.0], [2.5, 0.0, 0.0], [1.9, 0.0, 0.0]])).tolist() == [
        True,
        False,
        False,
    ]


def test_path_around_a_wall() -> None:
    world = arena(wall(0.0, -5.0, 0.0, 3.0))
    space = FreeSpace(world, RADIUS)
    start, goal = np.array([-2.0, 0.0, 0.0]), np.array([2.0, 0.0, 0.0])
    # Around the wall's end at a distance of 0.25 m: two tangents and an arc.
    reach = math.hypot(2.0, 3.0)
    arc = 2.0 * math.pi - 2.0 * math.atan2(2.0, 3.0) - 2.0 * math.acos(0.25 / reach)
    expected = 2.0 * math.sqrt(reach**2 - 0.25**2) + 0.25 * arc
    assert space.shortest_path_length(start, goal) == pytest.approx(expected, rel=0.01)
    assert space.detour(start, np.array([-2.0, 3.0, 0.0])) == pytest.approx(1.0)
    path = space.shortest_path(start, goal)
    assert path is not None
    assert path[0].tolist() == [-2.0, 0.0]
    assert path[-1].tolist() == [2.0, 0.0]
    dense = np.concatenate([np.linspace(a, b, 50) for a, b in pairwise(path)])
    assert space.is_free(np.column_stack((dense, np.zeros(len(dense))))).all()


def test_regions_that_are_not_connected() -> None:
    world = arena(wall(0.0, -5.0, 0.0, 5.0))
    space = FreeSpace(world, RADIUS)
    assert space.shortest_path_length(np.array([-2.0, 0.0]), np.array([2.0, 0.0])) == math.inf
    assert space.largest_share == pytest.approx(0.5, abs=0.02)
    rng = np.random.default_rng(0)
    for _ in range(50):
        start, goal = space.sample(rng)
        assert start[0] * goal[0] > 0.0
    with pytest.raises(NoRoom, match="no free start"):
        space.sample(rng, min_distance=11.0, max_distance=12.0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), polygon=st.booleans())
def test_samples_are_free_connected_apart_and_reproduce(seed: int, polygon: bool) -> None:
    footprint = (
        Footprint(polygon=((-0.25, -0.15), (0.25, -0.15), (0.25, 0.15), (-0.25, 0.15))) if polygon else RADIUS
    )
    world = generate.clutter(seed)
    space = FreeSpace(world, footprint)
    rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
    taken, goals = np.zeros((0, 3)), np.zeros((0, 3))
    for _ in range(8):
        start, goal = space.sample(rng, taken=taken, taken_goals=goals)
        assert np.array_equal(space.sample(again, taken=taken, taken_goals=goals), (start, goal))
        assert 2.0 <= math.hypot(*(goal - start)[:2]) <= 12.0
        assert space.is_free(np.stack((start, goal)), margin=0.02).all()
        assert math.isfinite(space.shortest_path_length(start, goal))
        taken, goals = np.vstack((taken, start)), np.vstack((goals, goal))
    reach = footprint.circumscribed_radius
    for points in (taken, goals):
        apart = np.hypot(*(points[:, None, :2] - points[None, :, :2]).transpose(2, 0, 1)) + 99 * np.eye(8)
        assert apart.min() >= 2 * reach + 0.2
    spec = RobotSpec("r", "differential", footprint, Limits(vx=1.0, wz=1.0), Lidar(beams=4))
    simulator = Simulator([world], spec, 8)
    simulator.place(np.arange(8), taken)
    assert (simulator.clearance() > 0.0).all()


@pytest.mark.parametrize("stream", [generate.TRAINING, generate.TEST])
def test_clutter_is_as_hard_as_stated(stream: int) -> None:
    result = straight.measure([generate.clutter(seed, stream) for seed in range(100)], BENCHMARK, seed=stream)
    # 30 % over 8,000 episodes; 800 in 100 worlds scatter by about 2 points.
    assert 0.24 < result.success < 0.37
    assert result.timeout < 0.02
    shares = result.detour_shares()
    assert shares[0] > 0.7
    assert shares[3] > 0.02


def test_difficulty_orders_worlds() -> None:
    success = [
        straight.measure(
            [generate.clutter(s, difficulty=d) for s in range(30)], BENCHMARK, robots_per_world=4
        ).success
        for d in (0.0, 0.5, 1.0)
    ]
    assert success[0] > success[1] > success[2]


def test_generated_worlds_reproduce_and_streams_differ() -> None:
    first, again, other = generate.clutter(3), generate.clutter(3), generate.clutter(3, generate.TEST)
    assert np.array_equal(first.segments, again.segments)
    assert not np.array_equal(first.segments[:4], other.segments[:4])
    with pytest.raises(ValueError, match="difficulty"):
        generate.clutter(0, difficulty=2.0)


GENERATORS = [
    generate.clutter,
    generate.rooms,
    generate.corridors,
    generate.office,
    generate.maze,
    generate.cylinders,
    generate.crowd,
]


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda g: g.__name__)
@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
def test_every_generator_gives_connected_starts_and_goals(
    generator: Callable[[int, int, float], World], difficulty: float
) -> None:
    rng = np.random.default_rng(0)
    for seed in range(4):
        world = generator(seed, generate.TRAINING, difficulty)
        assert np.array_equal(world.segments, generator(seed, generate.TRAINING, difficulty).segments)
        space = FreeSpace(world, RADIUS)
        assert space.largest_share > 0.8
        taken = np.zeros((0, 3))
        for _ in range(4):
            start, goal = space.sample(rng, taken=taken)
            assert math.isfinite(space.shortest_path_length(start, goal))
            taken = np.vstack((taken, start))


def test_a_car_starts_where_it_can_drive_on() -> None:
    # A corridor with a wall across its end: 4 m to drive eastwards, nothing westwards.
    footprint = Footprint(polygon=((0.45, -0.15), (0.45, 0.15), (-0.15, 0.15), (-0.15, -0.15)))
    walls = [box(0.0, 0.65, 6.0, 0.1), box(0.0, -0.65, 6.0, 0.1), box(-1.0, 0.0, 0.1, 1.2)]
    space = FreeSpace(build_world("corridor", [Solid((wall,)) for wall in walls]), footprint)
    for yaw, on in ((0.0, True), (math.pi, False)):
        pose = np.array([0.0, 0.0, yaw])
        assert space.is_free(pose)[0]
        assert has_way_ahead(space._geometry, space._body, pose, 0.75) == on


def test_a_cars_goals_lie_beyond_its_turning_circles() -> None:
    world = generate.clutter(3)
    space = FreeSpace(world, RADIUS, turning_radius=1.5)
    rng = np.random.default_rng(0)
    for _ in range(50):
        start, goal = space.sample(rng, min_distance=1.0)
        assert math.hypot(*(goal - start)[:2]) >= 3.0
        assert has_way_ahead(space._geometry, space._body, start, 1.5)


def test_a_robot_too_large_for_a_world_is_told_its_size() -> None:
    space = FreeSpace(generate.clutter(0), Footprint(radius=3.0))
    with pytest.raises(NoRoom, match=r"free for a robot of 3\.00 m"):
        space.sample(np.random.default_rng(0))
