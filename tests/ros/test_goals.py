"""Goals over real topics: several in a row, plans, cancellation, headings; and Nav2's actions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from geometry_msgs.msg import Pose, PoseArray, PoseStamped
from nav_msgs.msg import Path
from rclpy.action import ActionClient
from std_srvs.srv import Trigger

from scanpilot.geometry import quaternion_from_yaw
from tests.ros.conftest import moving, odometry_message, until


@pytest.fixture(scope="module")
def node(start_node, policy):
    return start_node("policy_node", "goals", policy=policy, goal_heading_tolerance=0.2, follow_path=HAS_NAV2)


@pytest.fixture
def fake(node, robot):
    """Its robot, waiting for a goal at (0, 0)."""
    made = robot("goals", rate=20.0)
    assert until(lambda: made.status.get("state") in STATES, 60.0), node.output
    return made


try:
    from nav2_msgs.action import FollowPath, NavigateToPose

    HAS_NAV2 = True
except ImportError:
    HAS_NAV2 = False

needs_nav2 = pytest.mark.skipif(not HAS_NAV2, reason="nav2_msgs is not installed: it is part of Nav2")
STATES = ("no goal", "driving", "reached", "turning", "bad input")


def pose(x: float, y: float = 0.0, yaw: float = 0.0) -> Pose:
    message = Pose()
    message.position.x, message.position.y = x, y
    q = message.orientation
    q.x, q.y, q.z, q.w = quaternion_from_yaw(yaw)
    return message


def stamped(x: float, y: float = 0.0, yaw: float = 0.0, frame: str = "odom") -> PoseStamped:
    message = PoseStamped(pose=pose(x, y, yaw))
    message.header.frame_id = frame
    return message


def path(*places: tuple[float, float], frame: str = "odom") -> Path:
    """A path as planners publish it: no orientation on the way."""
    message = Path()
    message.header.frame_id = frame
    for x, y in places:
        point = PoseStamped()
        point.pose.position.x, point.pose.position.y, point.pose.orientation.w = x, y, 0.0
        message.poses.append(point)
    return message


@pytest.fixture(scope="module")
def send(bench) -> Any:
    """Publish on a topic of goals once the node listens."""
    publishers: dict[str, Any] = {}

    def publish(topic: str, message: Any) -> None:
        if topic not in publishers:
            publishers[topic] = bench.node.create_publisher(type(message), f"/goals/{topic}", 1)
            assert until(publishers[topic].get_subscription_count, 60.0)
            # The other side finds out a little later.
            time.sleep(0.5)
        publishers[topic].publish(message)

    yield publish
    for publisher in publishers.values():
        bench.node.destroy_publisher(publisher)


def standing(x: float, y: float = 0.0, yaw: float = 0.0) -> Callable[[], Any]:
    def message() -> Any:
        made = odometry_message()
        made.pose.pose = pose(x, y, yaw)
        return made

    return message


def test_goals_in_a_row_are_visited_and_the_last_heading_turned_to(node, fake, send) -> None:
    message = PoseArray(poses=[pose(2.0, 0.0, 1.0), pose(2.0, 2.0, 2.0)])
    message.header.frame_id = "/odom"
    send("goal_poses", message)
    assert fake.reports("driving", "goal 1 of 2 is 2.0 m away"), f"{fake.status}\n{node.output}"
    fake.odometry = standing(1.9)
    assert fake.reports("driving", "goal 2 of 2 is 2.0 m away"), f"{fake.status}\n{node.output}"
    fake.odometry = standing(2.0, 1.9, yaw=1.0)
    assert fake.reports("turning", "57 deg off its heading"), f"{fake.status}\n{node.output}"
    # What is left of its speed it brakes as it may.
    assert until(
        lambda: (t := fake.commands[-1].message).angular.z > 0.0 and t.linear.x == t.linear.y == 0.0, 5.0
    )
    fake.odometry = standing(2.0, 1.9, yaw=1.9)
    assert fake.reports("reached"), f"{fake.status}\n{node.output}"
    assert until(lambda: not moving(fake.commands[-1].message), 3.0)


def test_a_plan_is_followed_to_its_end_and_can_be_taken_back(node, fake, send) -> None:
    send("plan", path((0.0, 0.0), (2.0, 0.0), (2.0, 4.0)))
    assert fake.reports("driving", "following the plan, 6.0 m to go"), f"{fake.status}\n{node.output}"
    fake.odometry = standing(2.0, 1.0, yaw=math.pi / 2)
    assert fake.reports("driving", "following the plan, 3.0 m to go"), f"{fake.status}\n{node.output}"
    send("plan", Path())
    assert fake.reports("no goal", "waiting for a goal"), f"{fake.status}\n{node.output}"
    # The end has no orientation: that of the path is meant.
    send("plan", path((0.0, 0.0), (2.0, 0.0), (2.0, 4.0)))
    fake.odometry = standing(2.0, 3.9, yaw=math.pi / 2)
    assert fake.reports("reached"), f"{fake.status}\n{node.output}"


def test_the_newest_counts_whichever_topic_it_comes_on(bench, node, fake, send) -> None:
    send("plan", path((0.0, 0.0), (6.0, 0.0)))
    assert fake.reports("driving", "following the plan"), f"{fake.status}\n{node.output}"
    fake.send_goal(x=3.0)
    assert fake.reports("driving", "goal is 3.0 m away"), f"{fake.status}\n{node.output}"
    assert bench.call(Trigger, "/goals/policy_node/stop", Trigger.Request()).success
    assert fake.reports("no goal"), fake.status


@pytest.mark.parametrize(
    ("topic", "message", "words"),
    [
        ("plan", path((0.0, 0.0), (math.nan, 0.0)), "not finite: pose 1"),
        ("goal_poses", PoseArray(poses=[pose(1.0), Pose()]), "goal 2 of 2"),
    ],
)
def test_broken_ones_are_refused_by_name(node, fake, send, topic: str, message: Any, words: str) -> None:
    if topic == "goal_poses":
        message.poses[1].orientation.w = 0.0
        words = "pose 1: orientation quaternion is all zero"
    send(topic, message)
    assert fake.reports("bad input", words), f"{fake.status}\n{node.output}"


def test_poses_of_a_plan_in_several_frames_are_refused(node, fake, send) -> None:
    message = path((0.0, 0.0), (1.0, 0.0))
    message.poses[1].header.frame_id = "map"
    send("plan", message)
    assert fake.reports("bad input", "different frames: map, odom"), f"{fake.status}\n{node.output}"


# Nav2's actions.


class Client:
    """Sends goals to one of the node's actions."""

    def __init__(self, bench: Any, kind: Any, name: str) -> None:
        self._client = ActionClient(bench.node, kind, f"/goals/{name}")
        assert self._client.wait_for_server(20.0), f"no action {name}"
        self.feedback: list[Any] = []

    def send(self, goal: Any) -> Any:
        """The handle of an accepted goal."""
        future = self._client.send_goal_async(
            goal, feedback_callback=lambda f: self.feedback.append(f.feedback)
        )
        assert until(future.done, 10.0)
        assert future.result().accepted
        return future.result()

    @staticmethod
    def outcome(handle: Any) -> tuple[int, Any]:
        """Status and result of a goal that has ended."""
        future = handle.get_result_async()
        assert until(future.done, 10.0)
        return future.result().status, future.result().result


@needs_nav2
def test_navigate_to_pose_succeeds_is_cancelled_and_replaced(bench, node, fake) -> None:
    from action_msgs.msg import GoalStatus

    client = Client(bench, NavigateToPose, "navigate_to_pose")
    handle = client.send(NavigateToPose.Goal(pose=stamped(3.0)))
    assert fake.reports("driving", "goal is 3.0 m away"), f"{fake.status}\n{node.output}"
    assert until(lambda: client.feedback, 5.0)
    assert client.feedback[-1].distance_remaining == pytest.approx(3.0, abs=0.01)
    assert client.feedback[-1].current_pose.header.frame_id == "odom"
    fake.odometry = standing(2.9)
    assert client.outcome(handle)[0] == GoalStatus.STATUS_SUCCEEDED, node.output

    handle = client.send(NavigateToPose.Goal(pose=stamped(8.0)))
    assert fake.reports("driving"), fake.status
    assert until(handle.cancel_goal_async().done, 5.0)
    assert client.outcome(handle)[0] == GoalStatus.STATUS_CANCELED
    assert fake.reports("no goal"), fake.status

    first = client.send(NavigateToPose.Goal(pose=stamped(8.0)))
    second = client.send(NavigateToPose.Goal(pose=stamped(9.0)))
    assert client.outcome(first)[0] == GoalStatus.STATUS_ABORTED
    assert fake.reports("driving", "goal is 6.1 m away"), fake.status
    fake.send_goal(x=7.0)
    status, _ = client.outcome(second)
    assert status == GoalStatus.STATUS_ABORTED
    assert fake.reports("driving", "goal is 4.1 m away"), fake.status


@needs_nav2
def test_navigate_to_pose_refuses_what_is_no_pose(bench, node, fake) -> None:
    from action_msgs.msg import GoalStatus

    client = Client(bench, NavigateToPose, "navigate_to_pose")
    goal = stamped(3.0)
    goal.pose.orientation.w = 0.0
    status, result = client.outcome(client.send(NavigateToPose.Goal(pose=goal)))
    assert status == GoalStatus.STATUS_ABORTED
    assert "all zero" in getattr(result, "error_msg", "all zero")


@needs_nav2
def test_follow_path_takes_the_controllers_place(bench, node, fake) -> None:
    from action_msgs.msg import GoalStatus

    client = Client(bench, FollowPath, "follow_path")
    handle = client.send(FollowPath.Goal(path=path((0.0, 0.0), (4.0, 0.0))))
    assert fake.reports("driving", "following the plan, 4.0 m to go"), f"{fake.status}\n{node.output}"
    # A plan made anew, as Nav2's planner does once a second, takes over.
    again = client.send(FollowPath.Goal(path=path((0.0, 0.0), (2.0, 0.5), (4.0, 0.0))))
    assert client.outcome(handle)[0] == GoalStatus.STATUS_ABORTED
    # Its end has no orientation of its own: that of its last piece is meant.
    fake.odometry = standing(3.9, yaw=-0.24)
    assert client.outcome(again)[0] == GoalStatus.STATUS_SUCCEEDED, node.output


def test_nothing_of_all_this_ended_the_node(node) -> None:
    assert node.code is None
    assert "Traceback" not in node.output
