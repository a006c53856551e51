"""Nav2's actions in front of the policy, where nav2_msgs is installed: go there, follow this path.

A goal of an action is a goal like any other: a newer one, on whatever topic, replaces it, and the
action is then aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.node import Node
from rclpy.task import Future

from scanpilot.navigator import Command, Navigator, State
from scanpilot.types import InvalidInput
from scanpilot_ros import convert
from scanpilot_ros.parameters import PolicyNodeParameters
from scanpilot_ros.routes import Routes

try:
    from nav2_msgs.action import FollowPath, NavigateToPose
except ImportError:
    # Part of Nav2, which a robot need not have. Topics do without it.
    FollowPath = NavigateToPose = None

_FEEDBACK_SECONDS = 0.2
_PATIENCE = 10.0


class _Goal:
    """A goal that is being driven to: its handle, the route's serial, and where its outcome goes."""

    def __init__(self, handle: Any, serial: int, outcome: Future) -> None:
        self.handle, self.serial, self.outcome = handle, serial, outcome
        self.begun = self.told = time.monotonic()
        self._stood: float | None = None

    def stands_too_long(self, state: State, now: float) -> bool:
        """Whether the robot has been kept from driving for longer than whoever waits should wait."""
        if state not in _STANDING:
            self._stood = None
            return False
        self._stood = now if self._stood is None else self._stood
        return now - self._stood > _PATIENCE


class Actions:
    """Action servers of one policy node.

    Args:
        node: that offers them.
        navigator: tells how far it is.
        routes: is given the goals.
        settings: which actions to offer.
    """

    def __init__(
        self, node: Node, navigator: Navigator, routes: Routes, settings: PolicyNodeParameters
    ) -> None:
        self._node, self._navigator, self._routes = node, navigator, routes
        self._goal: _Goal | None = None
        self._servers: list[ActionServer] = []
        wanted = [("navigate_to_pose", settings.navigate_to_pose), ("follow_path", settings.follow_path)]
        names = [name for name, offered in wanted if offered]
        if NavigateToPose is None:
            # The first is on unless switched off; whoever asked for the second must hear of it.
            if settings.follow_path:
                raise InvalidInput("follow_path is true, but nav2_msgs is not installed")
            return
        begin: dict[str, tuple[Any, Callable[[Any], None]]] = {
            "navigate_to_pose": (NavigateToPose, lambda request: routes.go_to(request.pose)),
            "follow_path": (FollowPath, lambda request: routes.follow(request.path)),
        }
        for name in names:
            kind, start = begin[name]
            self._servers.append(
                ActionServer(
                    node,
                    kind,
                    name,
                    execute_callback=self._execution(kind, start),
                    goal_callback=lambda _: GoalResponse.ACCEPT,
                    cancel_callback=lambda _: CancelResponse.ACCEPT,
                )
            )

    def update(self, command: Command) -> None:
        """What a tick came to: ends or reports on the goal of an action, if there is one."""
        goal = self._goal
        if goal is None:
            return
        if goal.handle.is_cancel_requested:
            self._routes.cancel()
            self._finish("canceled")
        elif goal.serial != self._routes.serial:
            self._finish("replaced by another goal, or stopped")
        elif command.state is State.REACHED:
            self._finish("")
        elif command.state in _FINAL or goal.stands_too_long(command.state, time.monotonic()):
            self._finish(command.reason)
        elif time.monotonic() - goal.told >= _FEEDBACK_SECONDS:
            goal.told = time.monotonic()
            goal.handle.publish_feedback(self._feedback(goal, command))

    def close(self) -> None:
        """Abort what is under way and stop to offer actions."""
        self._finish("the node was deactivated")
        for server in self._servers:
            server.destroy()
        self._servers = []

    def abort(self, reason: str) -> None:
        """The robot will not go on to the goal of an action, if there is one."""
        self._finish(reason)

    def _finish(self, problem: str) -> None:
        goal, self._goal = self._goal, None
        if goal is not None and not goal.outcome.done():
            goal.outcome.set_result(problem)
            if self._node.executor is not None:
                self._node.executor.wake()

    def _execution(self, kind: Any, start: Callable[[Any], None]) -> Callable[[Any], Any]:
        async def execute(handle: Any) -> Any:
            # One at a time: a newer goal takes over, as in Nav2.
            self._finish("replaced by another goal")
            try:
                start(handle.request)
            except InvalidInput as error:
                self._routes.cancel()
                self._navigator.reject_goal(str(error))
                problem = str(error)
            else:
                outcome: Future = Future(executor=self._node.executor)
                self._goal = _Goal(handle, self._routes.serial, outcome)
                problem = await outcome
            return _result(kind, handle, problem)

        return execute

    def _feedback(self, goal: _Goal, command: Command) -> Any:
        target = self._navigator.target
        remaining = 0.0 if target is None else target.remaining
        if isinstance(goal.handle.request, FollowPath.Goal):
            feedback = FollowPath.Feedback()
            # Newer releases state errors of tracking instead.
            if hasattr(feedback, "distance_to_goal"):
                feedback.distance_to_goal, feedback.speed = remaining, command.twist.vx
            return feedback
        feedback = NavigateToPose.Feedback(distance_remaining=remaining)
        stamp = self._node.get_clock().now().to_msg()
        odometry = self._navigator.odometry
        if odometry is not None:
            pose = convert.pose_message(odometry.pose, self._routes.odometry_frame, stamp)
            feedback.current_pose = pose
        seconds = time.monotonic() - goal.begun
        feedback.navigation_time.sec = int(seconds)
        feedback.navigation_time.nanosec = int(1e9 * (seconds % 1.0))
        return feedback


# These are decisions; out of the others a robot may come by itself, if it does not take too long.
_FINAL = (State.DISABLED, State.GAVE_UP)
_STANDING = (State.FAILED, State.BAD_INPUT, State.NO_POLICY)


def _result(kind: Any, handle: Any, problem: str) -> Any:
    """End a goal's handle and say why."""
    result = kind.Result()
    if not problem:
        handle.succeed()
    elif handle.is_cancel_requested:
        handle.canceled()
    else:
        handle.abort()
    # Humble's results say nothing.
    if problem and hasattr(result, "error_msg"):
        result.error_msg = problem
        result.error_code = getattr(kind.Result, "UNKNOWN", 1)
    return result
