"""Goals as they arrive: one pose, several in a row, or a planned path; and where they lie now.

The newest message counts, whichever topic it came on. An empty list of goals or an empty plan is a
cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geometry_msgs.msg import PoseArray, PoseStamped
from nav_msgs.msg import Path
from rclpy.node import Node

from scanpilot.goals import PlannedPath, Route, Waypoints
from scanpilot.navigator import Navigator
from scanpilot.types import ORIGIN, InvalidInput, Pose2D
from scanpilot_ros import convert, qos
from scanpilot_ros.frames import Frames
from scanpilot_ros.parameters import PolicyNodeParameters

# Metres to either side of the way to a sub-goal, beyond the robot's own half width.
_CLEARANCE = 0.05
# Where there is no policy yet to say how wide its robot is.
_HALF_WIDTH = 0.2


class Routes:
    """Feeds a navigator with goals.

    Args:
        node: that subscribes.
        navigator: is told.
        frames: look-ups of the frames of goals.
        settings: tolerance and look-ahead.
        own_frames: the odometry's frame and those that mean the robot; empty while not known.

    Attributes:
        serial: changes with every new goal and every cancellation.
        subscriptions: on the topics of goals.
    """

    def __init__(
        self,
        node: Node,
        navigator: Navigator,
        frames: Frames,
        settings: PolicyNodeParameters,
        own_frames: Callable[[], tuple[str, set[str]]],
    ) -> None:
        self._node, self._navigator, self._frames = node, navigator, frames
        self._settings, self._own_frames = settings, own_frames
        self._route: Route | None = None
        self._frame = ""
        # Where the route's frame was when the goal was given, for frames that move with the robot.
        self._origin: Pose2D | None = None
        self._placed = False
        self.serial = 0
        self.subscriptions: list[Any] = []
        for kind, topic, callback in (
            (PoseStamped, "goal_pose", self._on_goal),
            (PoseArray, "goal_poses", self._on_goals),
            (Path, "plan", self._on_plan),
        ):
            qos.subscribe_to_any(node, kind, topic, callback, self.subscriptions)

    @property
    def odometry_frame(self) -> str:
        """Name of the odometry's frame; empty while not known."""
        return self._own_frames()[0]

    def go_to(self, message: PoseStamped) -> None:
        """Drive to one pose.

        Raises:
            scanpilot.types.InvalidInput: it is none.
        """
        pose = convert.pose_from(message.pose)
        self._begin(Waypoints((pose,)), convert.frame_id(message.header.frame_id))

    def follow(self, message: Path) -> None:
        """Follow a path.

        Raises:
            scanpilot.types.InvalidInput: it is none.
        """
        poses, frame = convert.path_from(message)
        policy = self._navigator.policy
        half = _HALF_WIDTH if policy is None else policy.robot.footprint.inscribed_radius
        self._begin(PlannedPath(poses, self._settings.plan_lookahead, half + _CLEARANCE), frame)

    def cancel(self) -> None:
        """Forget where to go."""
        self.serial += 1
        self._route = None
        self._navigator.clear_goal()

    def place(self) -> None:
        """Tell the navigator where the route lies now; its frame may move against odometry's."""
        if self._route is None:
            return
        odometry = self._navigator.odometry
        if odometry is None:
            # A route that was placed before stays; that odometry is missing is said by the navigator.
            if not self._placed:
                self._navigator.reject_goal("cannot be placed without odometry")
            return
        odometry_frame, robot_frames = self._own_frames()
        try:
            if self._frame == "" or self._frame == odometry_frame:
                origin = ORIGIN
            elif self._frame in robot_frames:
                # A goal relative to the robot is meant relative to where the robot was then.
                origin = self._origin = self._origin or odometry.pose
            else:
                origin = self._frames.origin_in(odometry_frame, self._frame)
        except InvalidInput as error:
            self._navigator.reject_goal(str(error))
            return
        if self._placed:
            self._navigator.place_route(origin)
            return
        self._navigator.set_route(self._route, origin)
        self._placed = True
        end = self._navigator.goal
        assert end is not None
        self._node.get_logger().info(f"goal ({end.x:.2f}, {end.y:.2f}) in {odometry_frame!r}")

    def _begin(self, route: Route, frame: str) -> None:
        self.serial += 1
        self._route, self._frame, self._origin, self._placed = route, frame, None, False
        self.place()

    def _on_goal(self, message: PoseStamped) -> None:
        self._take("goal", lambda: self.go_to(message))

    def _on_goals(self, message: PoseArray) -> None:
        def begin() -> None:
            poses, frame = convert.poses_from(message)
            self._begin(Waypoints(poses, self._settings.goal_tolerance), frame)

        self._take("goals", begin, empty=not message.poses)

    def _on_plan(self, message: Path) -> None:
        self._take("plan", lambda: self.follow(message), empty=not message.poses)

    def _take(self, what: str, begin: Callable[[], None], empty: bool = False) -> None:
        if empty:
            self.cancel()
            return
        try:
            begin()
        except InvalidInput as error:
            # Not the goal before: whoever sent this one wants to go elsewhere.
            self.cancel()
            self._navigator.reject_goal(str(error))
            self._node.get_logger().error(f"{what} refused: {error}")
