"""Ranges against hand-computed geometry and against brute-force ray casting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.world import Disc, Solid, World, box, build_world, wall
from scanpilot.types import DoubleArray

# Metres by which rounding may put a range beyond what it hits.
ROUNDING = 1e-4


def robot(lidar: Lidar | None = None, **changes: object) -> RobotSpec:
    values: dict[str, object] = {
        "name": "test",
        "kinematics": "differential",
        "footprint": Footprint(radius=0.2),
        "limits": Limits(vx=2.0, wz=2.0),
        "lidar": lidar or Lidar(beams=8, range_max=20.0),
    }
    return RobotSpec(**{**values, **changes})  # type: ignore[arg-type]


def room(width: float, height: float, *solids: Solid, discs: tuple[Disc, ...] = ()) -> World:
    """Four thick walls whose inner faces bound width x height about the origin."""
    walls = [
        box(0.0, height / 2 + 0.1, width + 0.4, 0.2),
        box(0.0, -height / 2 - 0.1, width + 0.4, 0.2),
        box(width / 2 + 0.1, 0.0, 0.2, height + 0.4),
        box(-width / 2 - 0.1, 0.0, 0.2, height + 0.4),
    ]
    return build_world("room", [*(Solid((w,)) for w in walls), *solids], discs)


def scan_at(world: World, spec: RobotSpec, *poses: tuple[float, float, float]) -> np.ndarray:
    simulator = Simulator([world], spec, len(poses))
    simulator.place(np.arange(len(poses)), np.array(poses))
    return simulator.scan()


def test_room_from_its_centre() -> None:
    ranges = scan_at(room(10.0, 6.0), robot(), (0.0, 0.0, 0.0))[0]
    # Beams at -180, -135, -90 ... degrees.
    assert ranges == pytest.approx(
        [5, 3 * math.sqrt(2), 3, 3 * math.sqrt(2), 5, 3 * math.sqrt(2), 3, 3 * math.sqrt(2)]
    )


def test_room_from_a_turned_robot_with_a_turned_and_shifted_lidar() -> None:
    lidar = Lidar(
        beams=3, angle_min=-math.pi / 2, angle_max=math.pi / 2, range_max=20.0, x=0.5, y=0.1, yaw=math.pi / 2
    )
    # Robot looks up (+y): its lidar stands at x = 1 - 0.1, y = 1 + 0.5 and looks along -x.
    ranges = scan_at(room(10.0, 6.0), robot(lidar), (1.0, 1.0, math.pi / 2))[0]
    assert ranges == pytest.approx([3 - 1.5, 5 + 0.9, 3 + 1.5], abs=1e-5)


def test_a_miss_is_range_max() -> None:
    world = build_world("one box", [Solid((box(3.0, 0.0, 1.0, 1.0),))])
    ranges = scan_at(world, robot(Lidar(beams=4, range_max=7.0)), (0.0, 0.0, 0.0))[0]
    assert ranges.tolist() == [7.0, 7.0, 2.5, 7.0]
    assert scan_at(world, robot(Lidar(beams=4, range_max=2.0)), (0.0, 0.0, 0.0))[0].tolist() == [2.0] * 4


def test_a_single_beam_looks_along_angle_min() -> None:
    lidar = Lidar(beams=1, angle_min=math.pi / 2, angle_max=1.6, range_max=9.0)
    assert scan_at(room(8.0, 6.0), robot(lidar), (0.0, 0.0, 0.0))[0] == pytest.approx([3.0])


def test_circle() -> None:
    world = build_world("disc", discs=[Disc(3.0, 1.0, 1.0)])
    lidar = Lidar(beams=9, angle_min=-0.4, angle_max=0.4, range_max=20.0)
    ranges = scan_at(world, robot(lidar), (0.0, 0.5, 0.1))[0]
    for angle, measured in zip(
        lidar.angle_min + lidar.angle_increment * np.arange(9) + 0.1, ranges, strict=True
    ):
        along = 3.0 * math.cos(angle) + 0.5 * math.sin(angle)
        aside = 3.0 * math.sin(angle) - 0.5 * math.cos(angle)
        expected = along - math.sqrt(1.0 - aside**2) if abs(aside) < 1.0 else 20.0
        assert measured == pytest.approx(expected, abs=1e-5)


def test_rotated_box() -> None:
    # A square of side 2 turned by 45 degrees shows its corner at 4 - sqrt(2), its faces slope away.
    world = build_world("diamond", [Solid((box(4.0, 0.0, 2.0, 2.0, math.pi / 4),))])
    lidar = Lidar(beams=3, angle_min=-0.1, angle_max=0.1, range_max=20.0)
    ranges = scan_at(world, robot(lidar), (0.0, 0.0, 0.0))[0]
    slope = (4.0 - math.sqrt(2.0)) / (math.cos(0.1) + math.sin(0.1) * -1.0)
    face = (4.0 - math.sqrt(2.0)) / (math.cos(0.1) - math.sin(0.1))
    assert slope == face
    assert ranges == pytest.approx([face, 4.0 - math.sqrt(2.0), face], abs=1e-5)


def test_thin_wall_is_seen_from_both_sides() -> None:
    world = build_world("wall", [wall(1.0, -5.0, 1.0, 5.0)])
    ranges = scan_at(world, robot(Lidar(beams=4, range_max=20.0)), (0.0, 0.0, 0.0), (3.0, 0.5, 0.0))
    assert ranges[0, 2] == pytest.approx(1.0)
    assert ranges[1, 0] == pytest.approx(2.0)


def test_invisible_and_hollow_solids() -> None:
    outer, inner = box(4.0, 0.0, 4.0, 4.0), box(4.0, 0.0, 2.0, 2.0)
    ring = build_world("ring", [Solid((outer, inner))])
    assert scan_at(ring, robot(), (4.0, 0.0, 0.0))[0, 4] == pytest.approx(1.0)
    ghost = build_world("glass", [Solid((outer,), visible=False)])
    assert scan_at(ghost, robot(), (0.0, 0.0, 0.0))[0, 4] == 20.0


def test_robots_see_each_other_and_not_themselves() -> None:
    lidar = Lidar(beams=4, range_max=20.0)
    ranges = scan_at(room(10.0, 10.0), robot(lidar), (0.0, 0.0, 0.0), (2.0, 0.0, math.pi / 2))
    assert ranges[0].tolist() == pytest.approx([5.0, 5.0, 1.8, 5.0])
    # The second looks up: its beams go down, right, up, left.
    assert ranges[1].tolist() == pytest.approx([5.0, 3.0, 5.0, 1.8])


def test_polygonal_robots_see_each_others_faces() -> None:
    footprint = Footprint(polygon=((-0.3, -0.2), (0.5, -0.2), (0.5, 0.2), (-0.3, 0.2)))
    spec = robot(Lidar(beams=4, range_max=20.0), footprint=footprint)
    ranges = scan_at(room(10.0, 10.0), spec, (0.0, 0.0, 0.0), (2.0, 0.0, math.pi / 2), (2.0, 3.0, 0.0))
    assert ranges[0].tolist() == pytest.approx([5.0, 5.0, 1.8, 5.0])
    assert ranges[1].tolist() == pytest.approx([5.0, 3.0, 2.8, 1.5])


def _cast(world: World, x: float, y: float, angle: float) -> float:
    """Distance along one ray by testing everything: the slow, obvious way."""
    d = np.array([math.cos(angle), math.sin(angle)])
    best = math.inf
    for x0, y0, x1, y1 in world.segments:
        a, e = np.array([x0 - x, y0 - y]), np.array([x1 - x0, y1 - y0])
        across = d[0] * e[1] - d[1] * e[0]
        if abs(across) < 1e-12:
            continue
        r = (a[0] * e[1] - a[1] * e[0]) / across
        t = (a[0] * d[1] - a[1] * d[0]) / across
        if r > 0.0 and 0.0 <= t <= 1.0:
            best = min(best, r)
    for cx, cy, radius in world.circles:
        along = (cx - x) * d[0] + (cy - y) * d[1]
        aside = (cx - x) * d[1] - (cy - y) * d[0]
        if abs(aside) < radius and along > 0.0:
            best = min(best, along - math.sqrt(radius**2 - aside**2))
    return best


def cluttered(seed: int, boxes: int = 25, circles: int = 10) -> World:
    rng = np.random.default_rng(seed)
    solids = [
        Solid((box(*rng.uniform(-6, 6, 2), *rng.uniform(0.2, 2.0, 2), rng.uniform(0.0, math.pi)),))
        for _ in range(boxes)
    ]
    discs = tuple(Disc(*rng.uniform(-6, 6, 2), rng.uniform(0.05, 0.6)) for _ in range(circles))
    return room(14.0, 14.0, *solids, discs=discs)


def free_pose(world: World, rng: np.random.Generator, spec: RobotSpec) -> DoubleArray:
    simulator = Simulator([world], spec, 1)
    while True:
        pose = np.array([[*rng.uniform(-6.5, 6.5, 2), rng.uniform(-math.pi, math.pi)]])
        simulator.place([0], pose)
        inside = any(
            np.all((box_edges := solid.loops[0]) is not None)
            and _inside_convex(box_edges, pose[0, 0], pose[0, 1])
            for solid in world.solids
        ) or any(math.hypot(d.x - pose[0, 0], d.y - pose[0, 1]) < d.radius for d in world.discs)
        if not inside and simulator.clearance()[0] > 0.0:
            return pose[0]


def _inside_convex(loop: DoubleArray, x: float, y: float) -> bool:
    a, b = loop, np.roll(loop, -1, axis=0)
    return bool(np.all((b[:, 0] - a[:, 0]) * (y - a[:, 1]) - (b[:, 1] - a[:, 1]) * (x - a[:, 0]) > 0.0))


@pytest.mark.parametrize(("beams", "span"), [(181, 2 * math.pi), (97, math.radians(270.0)), (512, math.pi)])
def test_every_beam_agrees_with_brute_force(beams: int, span: float) -> None:
    lidar = Lidar(
        beams=beams, angle_min=-span / 2 + 0.2, angle_max=span / 2 + 0.2, range_max=9.0, x=0.1, yaw=0.4
    )
    spec = robot(lidar)
    for seed in range(4):
        world = cluttered(seed)
        x, y, yaw = free_pose(world, np.random.default_rng(seed), spec)
        measured = scan_at(world, spec, (x, y, yaw))[0]
        ox, oy = x + 0.1 * math.cos(yaw), y + 0.1 * math.sin(yaw)
        for k in range(0, beams, 3):
            angle = yaw + 0.4 + lidar.angle_min + k * lidar.angle_increment
            assert measured[k] == pytest.approx(min(_cast(world, ox, oy, angle), 9.0), abs=1e-4), (seed, k)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), turn=st.floats(-math.pi, math.pi), x=st.floats(-30, 30), y=st.floats(-30, 30)
)
def test_moving_world_and_robot_together_leaves_the_scan_unchanged(
    seed: int, turn: float, x: float, y: float
) -> None:
    world = cluttered(seed, boxes=8, circles=4)
    spec = robot(Lidar(beams=37, range_max=9.0))
    pose = free_pose(world, np.random.default_rng(seed), spec)
    c, s = math.cos(turn), math.sin(turn)
    rotation = np.array([(c, s), (-s, c)])
    moved = build_world(
        "moved",
        [Solid(tuple(loop @ rotation + (x, y) for loop in solid.loops)) for solid in world.solids],
        [Disc(*(np.array([d.x, d.y]) @ rotation + (x, y)), d.radius) for d in world.discs],
    )
    moved_pose = (*(pose[:2] @ rotation + (x, y)), pose[2] + turn)
    before, after = scan_at(world, spec, tuple(pose))[0], scan_at(moved, spec, moved_pose)[0]
    # A beam that grazes a corner may fall on either side of it after rounding.
    assert np.mean(np.abs(before - after) < 1e-4) >= 36 / 37


def test_scan_is_the_same_batched_or_single() -> None:
    worlds = [cluttered(seed) for seed in range(3)]
    spec = robot(Lidar(beams=64, range_max=9.0))
    poses = np.array([[free_pose(w, np.random.default_rng(k), spec) for k in range(2)] for w in worlds])
    together = Simulator(worlds, spec, 2)
    together.place(np.arange(6), poses.reshape(6, 3))
    ranges = together.scan()
    for index, world in enumerate(worlds):
        alone = Simulator([world], spec, 2)
        alone.place([0, 1], poses[index])
        assert np.array_equal(alone.scan(), ranges[2 * index : 2 * index + 2])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_range_exceeds_the_distance_to_an_obstacle_in_its_direction(seed: int) -> None:
    world, rng = cluttered(seed), np.random.default_rng(seed)
    x, y, yaw = free_pose(world, rng, robot())
    simulator = Simulator([world], robot(), 1)
    simulator.place([0], np.array([[x, y, yaw]]))
    for x0, y0, x1, y1 in world.segments[rng.integers(len(world.segments), size=10)]:
        t = rng.uniform(0.05, 0.95)
        px, py = x0 + t * (x1 - x0) - x, y0 + t * (y1 - y0) - y
        bearing = math.remainder(math.atan2(py, px) - yaw, 2.0 * math.pi)
        aimed = Lidar(beams=1, angle_min=bearing, angle_max=bearing + 0.1, range_max=30.0)
        assert simulator.scan(aimed)[0, 0] <= math.hypot(px, py) + ROUNDING
