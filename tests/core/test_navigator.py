"""One robot's control tick: what stops it, what it says, and that nothing of the past leaks in."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from scanpilot.guard import Action, GuardConfig
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.navigator import STALE_PERIODS, Command, GuardCounts, Navigator, NavigatorConfig, State
from scanpilot.networks import new_networks
from scanpilot.observation import ObservationSpec, observation_for
from scanpilot.policy import Policy
from scanpilot.recovery import RecoveryConfig
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.torch_inference import TorchInference
from scanpilot.types import ZERO_TWIST, InvalidInput, LaserScan, Odometry, Pose2D, Twist2D

PERIOD = 0.2
ROBOT = RobotSpec(
    "tester", "differential", Footprint(radius=0.2), Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0), Lidar(beams=90)
)
STILL = Odometry(Pose2D(0.0, 0.0, 0.0), ZERO_TWIST)
AHEAD = Pose2D(5.0, 0.0, 0.0)


def make_policy(
    seed: int = 0,
    robot: RobotSpec = ROBOT,
    observation: ObservationSpec | None = None,
    identity: str = "some",
) -> Policy:
    torch.manual_seed(seed)
    manifest = PolicyManifest("random", robot, observation or observation_for(robot), NetworkConfig(), PERIOD)
    return Policy(manifest, TorchInference(*new_networks(manifest)), identity)


def scan(value: float = 3.0, stamp: float = 0.0) -> LaserScan:
    ranges = np.full(90, value, np.float32)
    return LaserScan(ranges, -math.pi, 2.0 * math.pi / 90, 0.1, 10.0, stamp)


def driving(policy: Policy | None = None, **config: float) -> Navigator:
    """A navigator that has all it needs at time 0."""
    navigator = Navigator(NavigatorConfig(**config), policy or make_policy())
    navigator.set_scan(scan(), 0.0)
    navigator.set_odometry(STILL, 0.0)
    navigator.set_goal(AHEAD)
    return navigator


def test_drives_within_limits_and_acceleration() -> None:
    navigator = driving()
    last = ZERO_TWIST
    for tick in range(20):
        now = PERIOD * tick
        navigator.set_scan(scan(), now)
        navigator.set_odometry(STILL, now)
        command = navigator.tick(now)
        assert command.state is State.DRIVING
        assert 0.0 <= command.twist.vx <= 1.0
        assert abs(command.twist.wz) <= 1.5
        assert abs(command.twist.vx - last.vx) <= 2.0 * PERIOD + 1e-9
        assert abs(command.twist.wz - last.wz) <= 4.0 * PERIOD + 1e-9
        last = command.twist
    assert last.vx > 0.0


def test_the_policy_sees_scan_goal_and_speed_in_base_link() -> None:
    navigator = driving()
    navigator.set_odometry(Odometry(Pose2D(1.0, 2.0, math.pi / 2), Twist2D(0.3, 0.0, -0.2)), 0.0)
    navigator.set_goal(Pose2D(1.0, 5.0, math.pi))
    triplet = navigator.tick(0.0).triplet
    assert triplet is not None
    np.testing.assert_allclose(triplet.goal, (3.0, 0.0, math.pi / 2), atol=1e-6)
    np.testing.assert_array_equal(triplet.speed, np.array((0.3, 0.0, -0.2), np.float32))
    np.testing.assert_array_equal(triplet.scan, np.full((3, 180), 3.0, np.float32))


@pytest.mark.parametrize("silent", ["scan", "odom"])
def test_stale_input_stops_and_is_named(silent: str) -> None:
    navigator = driving()
    navigator.tick(0.0)
    limit = STALE_PERIODS * PERIOD
    late = limit + 0.01
    if silent == "scan":
        navigator.set_odometry(STILL, late)
    else:
        navigator.set_scan(scan(), late)
    assert navigator.stale_at() == pytest.approx(limit)
    assert navigator.tick(limit - 0.01).state is State.DRIVING
    command = navigator.tick(late)
    assert (command.state, command.twist) == (State.BAD_INPUT, ZERO_TWIST)
    assert command.reason.startswith(f"{silent} is stale")
    assert late < 2.0 * PERIOD


def test_missing_inputs_are_named() -> None:
    navigator = Navigator(NavigatorConfig(), make_policy(), "/a/scan", "/a/odom")
    navigator.set_goal(AHEAD)
    command = navigator.tick(0.0)
    assert (command.state, command.twist) == (State.BAD_INPUT, ZERO_TWIST)
    assert command.reason == "/a/scan: nothing received yet; /a/odom: nothing received yet"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_scan_that_says_nothing_stops(value: float) -> None:
    navigator = driving()
    assert navigator.tick(0.0).state is State.DRIVING
    navigator.set_scan(scan(value), 0.05)
    command = navigator.tick(0.1)
    assert (command.state, command.twist) == (State.BAD_INPUT, ZERO_TWIST)
    assert command.reason == "scan: none of the scan's 90 ranges is a finite number"
    navigator.set_scan(scan(), 0.15)
    assert navigator.tick(0.2).state is State.DRIVING


@pytest.mark.parametrize(
    "odometry",
    [
        Odometry(Pose2D(math.nan, 0.0, 0.0), ZERO_TWIST),
        Odometry(Pose2D(0.0, 0.0, 0.0), Twist2D(math.inf, 0.0, 0.0)),
    ],
)
def test_odometry_that_is_not_finite_stops(odometry: Odometry) -> None:
    navigator = driving()
    navigator.set_odometry(odometry, 0.0)
    command = navigator.tick(0.0)
    assert (command.state, command.twist) == (State.BAD_INPUT, ZERO_TWIST)
    assert command.reason.startswith("odom: not finite")
    assert navigator.odometry is None


def test_goal_that_is_not_finite_stops() -> None:
    navigator = driving()
    navigator.set_goal(Pose2D(math.nan, 0.0, 0.0))
    command = navigator.tick(0.0)
    assert (command.state, command.twist) == (State.BAD_INPUT, ZERO_TWIST)
    assert command.reason.startswith("goal_pose: not finite")


def test_goal_is_reached_with_hysteresis() -> None:
    navigator = driving(goal_tolerance=0.3, goal_hysteresis=0.2)

    def state_at(distance: float) -> State:
        navigator.place_route(Pose2D(distance - AHEAD.x, 0.0, 0.0))
        return navigator.tick(0.0).state

    assert [state_at(d) for d in (0.31, 0.29, 0.49, 0.51, 0.49, 0.29)] == [
        State.DRIVING,
        State.REACHED,
        State.REACHED,
        State.DRIVING,
        State.DRIVING,
        State.REACHED,
    ]
    # A new goal is not reached because the one before was.
    navigator.set_goal(Pose2D(0.4, 0.0, 0.0))
    assert navigator.tick(0.0).state is State.DRIVING


def test_after_a_stop_it_starts_from_rest() -> None:
    navigator = driving()
    for tick in range(5):
        navigator.set_scan(scan(), PERIOD * tick)
        navigator.set_odometry(STILL, PERIOD * tick)
        fast = navigator.tick(PERIOD * tick).twist
    navigator.enable(False)
    assert navigator.tick(1.0).state is State.DISABLED
    navigator.enable(True)
    navigator.set_scan(scan(), 1.0)
    navigator.set_odometry(STILL, 1.0)
    first = navigator.tick(1.0).twist
    assert fast.vx > 2.0 * PERIOD >= first.vx


def test_frames_of_before_a_pause_or_a_jump_of_stamps_are_forgotten() -> None:
    def newest_and_oldest(navigator: Navigator) -> tuple[float, float]:
        triplet = navigator.tick(0.0).triplet
        assert triplet is not None
        return float(triplet.scan[-1, 0]), float(triplet.scan[0, 0])

    navigator = driving()
    navigator.set_scan(scan(3.0, stamp=100.0), 0.0)
    assert newest_and_oldest(navigator) == (3.0, 3.0)
    navigator.set_scan(scan(4.0, stamp=100.1), 0.0)
    assert newest_and_oldest(navigator) == (4.0, 3.0)
    navigator.set_scan(scan(5.0, stamp=7.0), 0.0)
    assert navigator.resets == 1
    assert newest_and_oldest(navigator) == (5.0, 5.0)
    navigator.set_scan(scan(6.0, stamp=7.1), 0.0)
    assert newest_and_oldest(navigator) == (6.0, 5.0)
    navigator.clear_goal()
    navigator.tick(0.0)
    navigator.set_goal(AHEAD)
    assert newest_and_oldest(navigator) == (6.0, 6.0)


def test_swapped_policy_keeps_frames_only_if_it_sees_the_same() -> None:
    navigator = driving()
    navigator.tick(0.0)
    navigator.set_scan(scan(4.0), 0.0)
    navigator.swap_policy(make_policy(1, identity="other"))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    np.testing.assert_array_equal(command.triplet.scan[:, 0], np.array((3.0, 3.0, 4.0), np.float32))
    assert navigator.policy is not None
    assert navigator.policy.identity == "other"

    navigator.swap_policy(make_policy(2, observation=observation_for(ROBOT, beams=90, frames=2)))
    command = navigator.tick(0.0)
    assert command.triplet is not None
    np.testing.assert_array_equal(command.triplet.scan, np.full((2, 90), 4.0, np.float32))


def test_swap_keeps_the_speed() -> None:
    navigator = driving()
    for _ in range(5):
        before = navigator.tick(0.0).twist
    # More than one period of acceleration from rest would give.
    assert before.vx > 2.0 * PERIOD
    navigator.swap_policy(make_policy(identity="the same weights"))
    assert navigator.tick(0.0).twist == before


def test_policy_that_gives_no_number_stops() -> None:
    policy = make_policy()
    with torch.no_grad():
        for weight in policy.inference.network.parameters():
            weight.fill_(math.nan)
    command = driving(policy).tick(0.0)
    assert (command.state, command.twist) == (State.FAILED, ZERO_TWIST)
    assert "not finite" in command.reason


def test_limits_can_only_be_tightened() -> None:
    navigator = driving(vx=0.25)
    for _ in range(5):
        twist = navigator.tick(0.0).twist
    assert twist.vx == 0.25
    slow = RobotSpec("slow", "differential", Footprint(radius=0.2), Limits(vx=0.2, wz=1.0), Lidar(beams=90))
    with pytest.raises(InvalidInput, match=r"limit vx = 0\.25 is wider than the 0\.2"):
        navigator.swap_policy(make_policy(robot=slow))
    assert navigator.tick(0.0).state is State.DRIVING


def test_without_a_policy_it_stands_and_says_so() -> None:
    navigator = Navigator(NavigatorConfig())
    navigator.no_policy_reason = "policy refused: too old"
    command = navigator.tick(0.0)
    assert (command.state, command.twist, command.reason) == (
        State.NO_POLICY,
        ZERO_TWIST,
        "policy refused: too old",
    )


def test_mount_replaces_that_of_the_policy() -> None:
    navigator = driving()
    ranges = np.full(90, 10.0, np.float32)
    ranges[45] = 1.0  # straight ahead of the lidar
    turned = LaserScan(ranges, -math.pi, 2.0 * math.pi / 90, 0.1, 10.0)
    navigator.set_mount(Pose2D(0.0, 0.0, math.pi / 2))
    navigator.set_scan(turned, 0.0)
    triplet = navigator.tick(0.0).triplet
    assert triplet is not None
    nearest = observation_for(ROBOT).angles[int(np.argmin(triplet.scan[-1]))]
    assert nearest == pytest.approx(math.pi / 2, abs=0.05)


def wall_ahead(distance: float) -> LaserScan:
    """A wall across the way, nothing else."""
    angles = -math.pi + 2.0 * math.pi / 90 * np.arange(90)
    ranges = np.where(np.cos(angles) > 0.1, distance / np.maximum(np.cos(angles), 0.1), 10.0)
    return LaserScan(ranges.astype(np.float32), -math.pi, 2.0 * math.pi / 90, 0.1, 10.0)


class Ahead:
    """Full speed ahead, whatever it sees."""

    def __init__(self) -> None:
        like = make_policy()
        self.robot, self.observation, self.name, self.identity = ROBOT, like.observation, "ahead", "ahead"
        self.control_period = PERIOD

    def act(self, triplet: object) -> np.ndarray:
        return np.array([1.0, 0.0, 0.0], np.float32)


def drive(
    navigator: Navigator, scene: LaserScan, ticks: int, begin: int = 0, odometry: Odometry = STILL
) -> Command:
    """Ticks before one scene and odometry, inputs always fresh; the last command."""
    for tick in range(begin, begin + ticks):
        now = PERIOD * tick
        navigator.set_scan(scene, now)
        navigator.set_odometry(odometry, now)
        command = navigator.tick(now)
    return command


def test_the_guard_stops_at_once_what_the_limits_would_let_roll_on() -> None:
    navigator = driving(Ahead())
    fast = Odometry(Pose2D(0.0, 0.0, 0.0), Twist2D(0.8, 0.0, 0.0))
    assert drive(navigator, scan(), 2, odometry=fast).twist.vx == pytest.approx(0.8)
    assert navigator.guard_counts == GuardCounts(2, 0, 0)
    # 2 m/s^2 for 0.2 s would leave 0.4 m/s.
    command = drive(navigator, wall_ahead(0.25), 1, 2, fast)
    assert (command.twist, command.guard) == (ZERO_TWIST, Action.STOPPED)
    assert command.state is State.DRIVING
    assert command.reason.endswith("guard: stopped, 0.05 m clear")
    assert navigator.guard_counts == GuardCounts(3, 0, 1)
    # And from rest again.
    assert drive(navigator, scan(), 1, 3, fast).twist.vx == pytest.approx(0.4)


def test_without_the_guard_it_drives_on() -> None:
    navigator = driving(Ahead(), guard=GuardConfig(enabled=False))
    assert drive(navigator, wall_ahead(0.25), 5).twist.vx == pytest.approx(1.0)
    assert navigator.guard_counts.ticks == 0


def test_the_guard_knows_the_robot_that_drives() -> None:
    large = replace(ROBOT, footprint=Footprint(radius=0.6))
    assert drive(driving(Ahead()), wall_ahead(0.9), 1).guard is Action.NONE
    assert drive(driving(Ahead(), robot=large), wall_ahead(0.61), 1).guard is Action.STOPPED


def test_jerk_is_limited_where_a_limit_is_stated() -> None:
    navigator = driving(Ahead(), jx=2.0)
    speeds = [drive(navigator, scan(), 1, tick).twist.vx for tick in range(3)]
    # 0.4 m/s^2 more each period.
    assert speeds == pytest.approx([0.08, 0.24, 0.48])


def test_a_blocked_robot_recovers_gives_up_and_tries_again_for_another_goal() -> None:
    recovery = RecoveryConfig(
        number_of_retries=2, blocked_time_allowance=1.0, wait_duration=1.0, time_allowance=1.0
    )
    navigator = driving(Ahead(), recovery=recovery)
    states = [drive(navigator, wall_ahead(0.21), 1, tick).state for tick in range(40)]
    assert [s for i, s in enumerate(states) if i == 0 or s is not states[i - 1]] == [
        State.DRIVING,
        State.RECOVERING,
        State.DRIVING,
        State.RECOVERING,
        State.DRIVING,
        State.GAVE_UP,
    ]
    command = drive(navigator, scan(), 1, 40)
    assert (command.state, command.twist) == (State.GAVE_UP, ZERO_TWIST)
    assert "gave up after 2 recoveries: the guard keeps it standing for 1 s" in command.reason
    navigator.set_goal(Pose2D(-5.0, 0.0, 0.0))
    assert drive(navigator, scan(), 1, 41).state is State.DRIVING


def test_a_recovery_is_guarded_even_where_the_guard_is_off() -> None:
    recovery = RecoveryConfig(behaviors=("backup",), movement_time_allowance=1.0, backup_dist=0.1)
    navigator = driving(
        Ahead(), recovery=recovery, guard=GuardConfig(False, footprint_padding=0.2, escape_padding=0.2)
    )
    ranges = np.full(90, 3.0, np.float32)
    # 0.4 m behind, in a beam that looks straight back: farther than it wants to go, nearer than may be.
    ranges[0] = 0.4
    behind = LaserScan(ranges, -math.pi, 2.0 * math.pi / 90, 0.1, 10.0)
    command = drive(navigator, behind, 10)
    assert command.state is State.RECOVERING
    assert command.reason.startswith("backup (1 of 6): less than 0.5 m away in 1 s; guard: ")
    assert command.twist.vx > -0.1
