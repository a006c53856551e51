"""What the navigator makes of routes, headings at the goal, several lidars and frozen scans."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scanpilot.goals import PlannedPath, Waypoints
from scanpilot.navigator import Navigator, NavigatorConfig, State
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import ZERO_TWIST, LaserScan, Odometry, Pose2D, Twist2D
from tests.core.test_navigator import AHEAD, PERIOD, STILL, driving, make_policy, scan

BOX = RobotSpec(
    "box",
    "differential",
    Footprint(polygon=((0.4, 0.2), (-0.4, 0.2), (-0.4, -0.2), (0.4, -0.2))),
    Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0),
    Lidar(beams=90),
)
CAR = RobotSpec(
    "car", "car", Footprint(radius=0.2), Limits(vx=1.0, wz=1.5), Lidar(beams=90), turning_radius=0.7
)


def at(navigator: Navigator, x: float, y: float = 0.0, yaw: float = 0.0) -> None:
    navigator.set_odometry(Odometry(Pose2D(x, y, yaw), ZERO_TWIST), 0.0)


# Routes.


def test_goals_in_a_row_are_driven_through_to_the_last() -> None:
    navigator = driving()
    navigator.set_route(Waypoints((Pose2D(2.0, 0.0, 0.0), Pose2D(4.0, 0.0, 0.0))))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    assert (float(command.triplet.goal[0]), command.reason) == (2.0, "goal 1 of 2 is 2.0 m away")
    at(navigator, 1.9)
    command = navigator.tick(0.0)
    assert (command.state, command.reason) == (State.DRIVING, "goal 2 of 2 is 2.1 m away")
    at(navigator, 4.0)
    assert navigator.tick(0.0).state is State.REACHED


def test_a_route_follows_its_frame() -> None:
    navigator = driving()
    navigator.set_route(Waypoints((Pose2D(3.0, 1.0, 0.5),)), Pose2D(1.0, 0.0, math.pi / 2))
    # 3 ahead and 1 left in a frame at (1, 0) that looks left: (0, 3).
    goal = navigator.goal
    assert goal == pytest.approx((0.0, 3.0, math.pi / 2 + 0.5))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    np.testing.assert_allclose(command.triplet.goal, (0.0, 3.0, math.pi / 2 + 0.5), atol=1e-6)
    navigator.place_route(Pose2D(2.0, 0.0, math.pi / 2))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    np.testing.assert_allclose(command.triplet.goal, (1.0, 3.0, math.pi / 2 + 0.5), atol=1e-6)


def test_a_plan_is_followed_by_sub_goals_ahead_on_it() -> None:
    navigator = driving()
    # In a frame 1 m behind odometry's: 5 m ahead, then 5 m to the left.
    plan = np.array([(1, 0, 0), (6, 0, 0), (6, 5, 1)], dtype=float)
    navigator.set_route(PlannedPath(plan, look_ahead=2.0), Pose2D(-1.0, 0.0, 0.0))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    np.testing.assert_allclose(command.triplet.goal, (2.0, 0.0, 0.0), atol=1e-6)
    assert command.reason == "following the plan, 10.0 m to go"
    # The wall 3 m all round hides what is behind it.
    at(navigator, 3.5)
    assert navigator.tick(0.0).state is State.DRIVING
    target = navigator.target
    assert target is not None
    assert target.pose == pytest.approx((5.0, 0.5, math.pi / 2))
    at(navigator, 5.0, 4.9)
    assert navigator.tick(0.0).state is State.REACHED


def test_a_plan_made_anew_to_the_reached_goal_does_not_set_the_robot_off_again() -> None:
    navigator = driving(goal_tolerance=0.3, goal_hysteresis=0.2)
    at(navigator, 4.75)
    assert navigator.tick(0.0).state is State.REACHED
    at(navigator, 4.6)
    navigator.set_route(PlannedPath(np.array([(4.6, 0, 0), AHEAD])))
    assert navigator.tick(0.0).state is State.REACHED
    navigator.set_route(PlannedPath(np.array([(4.6, 0, 0), (5.2, 0, 0)])))
    assert navigator.tick(0.0).state is State.DRIVING


def test_cancelled_it_waits_and_a_rejected_goal_replaces_the_one_before() -> None:
    navigator = driving()
    navigator.clear_goal()
    assert navigator.tick(0.0).state is State.NO_GOAL
    navigator.set_goal(AHEAD)
    navigator.reject_goal("unknown frame")
    command = navigator.tick(0.0)
    assert (command.state, command.reason) == (State.BAD_INPUT, "goal_pose: unknown frame")
    assert navigator.goal is None
    navigator.place_route(Pose2D(0.0, 0.0, 0.0))
    assert navigator.tick(0.0).state is State.DRIVING


def drive_in_a_trap(route: Waypoints | PlannedPath, seconds: float) -> State:
    """The released policy, simulated, in a dead end 3 m deep and wide that opens behind it."""
    from scanpilot import load_policy, resources
    from scanpilot.sim.simulator import Simulator
    from scanpilot.sim.world import build_world, wall

    policy = load_policy(resources.find("policy", "generic_diff"))
    trap = build_world("trap", [wall(3, -1.5, 3, 1.5), wall(0, 1.5, 3, 1.5), wall(0, -1.5, 3, -1.5)])
    simulator = Simulator([trap], policy.robot, 1)
    simulator.place([0], np.array([[1.5, 0.0, 0.0]]))
    navigator = Navigator(NavigatorConfig(), policy)
    navigator.set_route(route)
    lidar, period = policy.robot.lidar, policy.control_period
    state = State.DRIVING
    for tick in range(round(seconds / period)):
        ranges = simulator.scan()[0]
        seen = LaserScan(ranges, lidar.angle_min, lidar.angle_increment, lidar.range_min, lidar.range_max)
        navigator.set_scan(seen, tick * period)
        pose, twist = Pose2D(*simulator.poses[0]), Twist2D(*simulator.twists[0])
        navigator.set_odometry(Odometry(pose, twist), tick * period)
        command = navigator.tick(tick * period)
        state = command.state
        if state is State.REACHED:
            break
        assert not simulator.step(np.array([command.twist]), period).any(), "no contact"
    return state


def test_a_plan_leads_out_of_a_dead_end() -> None:
    goal = Pose2D(6.0, 0.0, 0.0)
    plan = np.array([(1.5, 0, 0), (-1, 0, 0), (-1, 2.5, 0), (6, 2.5, 0), goal], dtype=float)
    assert drive_in_a_trap(PlannedPath(plan, clearance=0.25), 40.0) is State.REACHED


# Headings.


def turning(robot: RobotSpec, wall: float, yaw: float = 2.0) -> Navigator:
    navigator = Navigator(NavigatorConfig(heading_tolerance=0.1), make_policy(robot=robot))
    navigator.set_scan(scan(wall), 0.0)
    navigator.set_odometry(STILL, 0.0)
    navigator.set_goal(Pose2D(0.1, 0.0, yaw))
    return navigator


@pytest.mark.parametrize("yaw", [2.0, -2.0])
def test_at_the_goal_it_turns_to_the_heading_within_its_limits(yaw: float) -> None:
    navigator = turning(BOX, 3.0, yaw)
    heading = last = 0.0
    for tick in range(60):
        now = PERIOD * tick
        navigator.set_scan(scan(), now)
        navigator.set_odometry(Odometry(Pose2D(0.0, 0.0, heading), Twist2D(0.0, 0.0, last)), now)
        command = navigator.tick(now)
        if command.state is State.REACHED:
            break
        assert command.state is State.TURNING
        assert command.reason.startswith("turning to the goal's heading, ")
        assert (command.twist.vx, command.twist.vy) == (0.0, 0.0)
        assert abs(command.twist.wz) <= 1.5
        assert abs(command.twist.wz - last) <= 4.0 * PERIOD + 1e-9
        last = command.twist.wz
        heading += PERIOD * last
    assert command.state is State.REACHED
    assert command.twist == ZERO_TWIST
    assert abs(heading - yaw) < 0.1
    assert tick < 25


@pytest.mark.parametrize(
    ("robot", "wall", "words"), [(BOX, 0.43, "no room to turn"), (CAR, 3.0, "a car cannot turn on the spot")]
)
def test_where_it_cannot_turn_the_goal_is_reached_without(robot: RobotSpec, wall: float, words: str) -> None:
    command = turning(robot, wall).tick(0.0)
    assert (command.state, command.twist) == (State.REACHED, ZERO_TWIST)
    assert words in command.reason
    assert "115 deg off its heading" in command.reason


# Several lidars.


def half(value: float) -> LaserScan:
    """What a lidar sees that looks 180 degrees ahead."""
    return LaserScan(np.full(91, value, np.float32), -math.pi / 2, math.pi / 90, 0.1, 10.0)


def two_lidars() -> Navigator:
    navigator = Navigator(NavigatorConfig(), make_policy(), ("front", "rear"))
    navigator.set_mount(Pose2D(0.2, 0.0, 0.0), lidar=0)
    navigator.set_mount(Pose2D(-0.2, 0.0, math.pi), lidar=1)
    navigator.set_odometry(STILL, 0.0)
    navigator.set_goal(AHEAD)
    return navigator


def test_several_lidars_are_merged() -> None:
    navigator = two_lidars()
    navigator.set_scan(half(2.0), 0.0, lidar=0)
    command = navigator.tick(0.0)
    assert (command.state, command.reason) == (State.BAD_INPUT, "rear: nothing received yet")
    navigator.set_scan(half(4.0), 0.0, lidar=1)
    triplet = navigator.tick(0.0).triplet
    assert triplet is not None
    beams = triplet.scan[-1]
    assert beams[90] == pytest.approx(2.2, abs=1e-3)
    assert beams[0] == pytest.approx(4.2, abs=1e-3)
    # Between the two, 0.4 m apart, neither sees what is straight to the side.
    assert 0 < np.count_nonzero(beams > 5.0) < 14


def test_each_lidar_is_judged_by_itself() -> None:
    navigator = two_lidars()
    for lidar in (0, 1):
        navigator.set_scan(half(2.0), 0.0, lidar=lidar)
    assert navigator.set_scan(half(math.nan), 0.1, lidar=1) is not None
    command = navigator.tick(0.1)
    assert command.state is State.BAD_INPUT
    assert command.reason == "rear: none of the scan's 91 ranges is a finite number"
    navigator.set_scan(half(2.0), 0.3, lidar=1)
    navigator.set_odometry(STILL, 0.4)
    assert navigator.tick(0.4).reason.startswith("front is stale")
    assert navigator.stale_at() == pytest.approx(0.35)


# One scene, twelve lidars: whatever the order, mount, encoding and count, the policy does the same.

# Metres to the walls of a room, seen from base_link (x back, x ahead, y right, y left), which is open behind
# the left for as far as a lidar sees.
ROOM = (-2.0, 3.0, -1.5, 2.5)


def room_distance(x: float, y: float, direction: float) -> float:
    c, s = math.cos(direction), math.sin(direction)
    walls = ((ROOM[0], x, c), (ROOM[1], x, c), (ROOM[2], y, s), (ROOM[3], y, s))
    hits = [(bound - start) / way for bound, start, way in walls if (bound - start) * way > 0.0]
    distance = min(hits)
    hit_x, hit_y = x + distance * c, y + distance * s
    # The doorway, seen so obliquely from everywhere that its edges are the same for all.
    opened = abs(hit_y - ROOM[3]) < 1e-9 and -1.0 < hit_x < -0.3
    return math.inf if opened else distance


def rendered(
    beams: int,
    first: float,
    span: float,
    mount: Pose2D,
    none: float = math.inf,
    clockwise: bool = False,
    flipped: bool = False,
    closed: bool = False,
) -> LaserScan:
    """The room as one lidar reports it.

    Args:
        beams: their number.
        first: direction of the first, in the lidar's frame.
        span: radians that they cover; a full turn is left open by one beam unless ``closed``.
        mount: pose of the lidar in ``base_link``.
        none: its code for no return.
        clockwise: its increment is negative.
        flipped: it hangs upside down.
        closed: its last beam repeats the first direction.
    """
    full = span > 2.0 * math.pi - 1e-6 and not closed
    increment = span / (beams if full else beams - 1) * (-1.0 if clockwise else 1.0)
    sign = -1.0 if flipped else 1.0
    angles = first + increment * np.arange(beams)
    ranges = [room_distance(mount.x, mount.y, mount.yaw + sign * a) for a in angles]
    coded = np.array([none if math.isinf(r) or r > 10.0 else r for r in ranges], np.float32)
    return LaserScan(coded, first, increment, 0.1, 10.0)


TURN = 2.0 * math.pi
CENTRE = Pose2D(0.0, 0.0, 0.0)
TWELVE: dict[str, tuple[dict[str, object], ...]] = {
    "360 beams from -pi": ({"beams": 720, "first": -math.pi, "span": TURN, "mount": CENTRE},),
    "from 0 to 2 pi": ({"beams": 720, "first": 0.0, "span": TURN, "mount": CENTRE},),
    "clockwise": ({"beams": 720, "first": math.pi, "span": TURN, "mount": CENTRE, "clockwise": True},),
    "zero is no return": ({"beams": 720, "first": -math.pi, "span": TURN, "mount": CENTRE, "none": 0.0},),
    "nan is no return": ({"beams": 720, "first": -math.pi, "span": TURN, "mount": CENTRE, "none": math.nan},),
    "vendor's cap": ({"beams": 720, "first": 0.0, "span": TURN, "mount": CENTRE, "none": 65.535},),
    "range_max is no return": ({"beams": 720, "first": 0.0, "span": TURN, "mount": CENTRE, "none": 10.0},),
    "turned by 90 degrees": (
        {"beams": 720, "first": -math.pi, "span": TURN, "mount": Pose2D(0.0, 0.0, math.pi / 2)},
    ),
    "upside down, turned by 180 degrees": (
        {"beams": 720, "first": -math.pi, "span": TURN, "mount": Pose2D(0.0, 0.0, math.pi), "flipped": True},
    ),
    "1081 beams, the last repeats the first": (
        {"beams": 1081, "first": -math.pi, "span": TURN, "mount": CENTRE, "closed": True},
    ),
    "1440 beams, 0.1 m ahead of the centre": (
        {"beams": 1440, "first": -math.pi, "span": TURN, "mount": Pose2D(0.1, 0.0, 0.0), "none": 0.0},
    ),
    "two of 270 degrees on opposite corners, one upside down": (
        {"beams": 1081, "first": -0.75 * math.pi, "span": 1.5 * math.pi, "mount": Pose2D(0.1, 0.1, 0.8)},
        {
            "beams": 811,
            "first": -0.75 * math.pi,
            "span": 1.5 * math.pi,
            "mount": Pose2D(-0.1, -0.1, 0.8 + math.pi),
            "flipped": True,
            "none": math.nan,
        },
    ),
}


def test_twelve_lidars_in_one_scene_give_the_same_action() -> None:
    from scanpilot import load_policy, resources

    released = load_policy(resources.find("policy", "generic_diff"))
    actions = {}
    for name, lidars in TWELVE.items():
        navigator = Navigator(NavigatorConfig(), released, [str(i) for i in range(len(lidars))])
        for i, given in enumerate(lidars):
            navigator.set_mount(given["mount"], bool(given.get("flipped", False)), lidar=i)  # type: ignore[arg-type]
            navigator.set_scan(rendered(**given), 0.0, lidar=i)  # type: ignore[arg-type]
        navigator.set_odometry(Odometry(CENTRE, Twist2D(0.3, 0.0, 0.1)), 0.0)
        navigator.set_goal(Pose2D(2.0, 1.5, 0.0))
        triplet = navigator.tick(0.0).triplet
        assert triplet is not None
        actions[name] = released.act(triplet)
    assert len(actions) == 12
    assert np.isinf(rendered(720, 0.0, TURN, CENTRE).ranges).sum() > 10, "the doorway"
    first = actions["360 beams from -pi"]
    worst = {name: float(np.abs(action - first).max()) for name, action in actions.items()}
    print("\n".join(f"{name}: {difference:.4f}" for name, difference in worst.items()))
    # To be 0.02: the cells of the guide's map turn the last bit of an offset lidar's hits into a little more.
    assert max(worst.values()) < 0.03, worst


# Frozen scans.


def test_a_frozen_scan_stops_the_robot_while_odometry_moves() -> None:
    navigator = driving()
    ranges = np.linspace(1.0, 4.0, 90).astype(np.float32)

    def see(now: float, offset: float) -> State:
        navigator.set_odometry(Odometry(Pose2D(0.1, 0.0, 0.0), Twist2D(0.5, 0.0, 0.0)), now)
        navigator.set_scan(LaserScan(ranges + np.float32(offset), -math.pi, 0.07, 0.1, 10.0), now)
        return navigator.tick(now).state

    states = [see(0.1 * i, 0.0) for i in range(9)]
    assert states == [State.DRIVING] * 6 + [State.BAD_INPUT] * 3
    assert "the lidar's driver hangs" in navigator.tick(0.8).reason
    assert see(0.9, 0.01) is State.DRIVING
