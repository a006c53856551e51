"""The policy node: scan, odometry and goal in, velocity out; the policy is replaced while it drives.

A lifecycle node that starts itself unless ``autostart`` is false. What the robot does and why is on
``~/status``; every way out of driving (goal reached, bad input, deactivation, signal, exception)
sends zero velocity.

Threads: the executor's runs every callback and the control timer; the policy loader's only offers
new policies; the watchdog's only ever sends zero, between two ticks, when an input becomes stale.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import torch
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry as OdometryMessage
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.task import Future
from sensor_msgs.msg import LaserScan as LaserScanMessage
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger
from visualization_msgs.msg import MarkerArray

from scanpilot import resources
from scanpilot.configuration import ConfigurationError
from scanpilot.geometry import compose
from scanpilot.navigator import DEFAULT_PERIOD, Command, Navigator, State
from scanpilot.policy import Policy
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.types import ZERO_TWIST, InvalidInput, Pose2D, Twist2D
from scanpilot_ros import convert, markers, qos, running
from scanpilot_ros.frames import Frames
from scanpilot_ros.hot_loading import Loaded, PolicyLoader
from scanpilot_ros.parameters import PolicyNodeParameters, declare, read
from scanpilot_ros.timing import TickTiming

_STATUS_SECONDS = 0.5
_DIAGNOSTICS_SECONDS = 1.0
# How long the first scans wait for TF to say where the lidar sits.
_MOUNT_PATIENCE = 2.0

_LEVELS = {
    State.DRIVING: DiagnosticStatus.OK,
    State.REACHED: DiagnosticStatus.OK,
    State.NO_GOAL: DiagnosticStatus.OK,
    State.DISABLED: DiagnosticStatus.WARN,
    State.NO_POLICY: DiagnosticStatus.ERROR,
    State.BAD_INPUT: DiagnosticStatus.ERROR,
    State.FAILED: DiagnosticStatus.ERROR,
}


class PolicyNode(LifecycleNode):
    """Drives one robot; see the module. Options are those of `rclpy.node.Node`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("policy_node", **options)
        declare(self, PolicyNodeParameters)
        # Rates and watchdogs must go on when the ROS clock stands still.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._send_lock = threading.Lock()
        self._active = False
        self._ticked = threading.Event()
        self._moving = False
        self._command = Command(ZERO_TWIST, State.DISABLED, "not configured")
        self._failure = ""
        self._status = self.create_publisher(DiagnosticStatus, "~/status", qos.LATCHED)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.RELIABLE)
        self._reported: tuple[State, str] | None = None
        self._other_type = ""
        self.create_timer(_STATUS_SECONDS, self._report, clock=self._steady)
        self.create_timer(_DIAGNOSTICS_SECONDS, self._diagnose, clock=self._steady)
        self._configured: list[Any] = []
        if read(self, PolicyNodeParameters).autostart:
            self._start()

    def _start(self) -> None:
        if self.trigger_configure() != TransitionCallbackReturn.SUCCESS:
            raise InvalidInput(self._failure)
        self.trigger_activate()

    # Lifecycle

    def on_configure(self, _state: LifecycleState) -> TransitionCallbackReturn:
        """Read parameters, load the policy, open topics; without a usable policy it waits for one."""
        try:
            self._settings = read(self, PolicyNodeParameters)
            named = self._settings.robot
            robot = load_robot(resources.find("robot", named)) if named else None
            config = self._settings.navigator_config(robot)
        except (InvalidInput, ConfigurationError, FileNotFoundError) as error:
            self._failure = str(error)
            self.get_logger().error(self._failure)
            return TransitionCallbackReturn.FAILURE
        self._robot: RobotSpec | None = robot
        names = {n: self.resolve_topic_name(n) for n in ("scan", "odom", "goal_pose")}
        self.navigator = Navigator(config, None, names["scan"], names["odom"], names["goal_pose"])
        self._frames = Frames(self)
        self._goal: tuple[Pose2D, str] | None = None
        self._goal_placed = False
        self._odometry_frame = ""
        self._child_frame = ""
        self._mount_known = ""
        self._first_scan: float | None = None
        self._path = ""
        self._open()
        self._set_stated_mount()
        self._loader = PolicyLoader(self._accept, self._refused, self._await_tick)
        self._loader.start(_policy_path(self._settings.policy))
        if not self._settings.policy:
            self.navigator.no_policy_reason = "parameter 'policy' is empty and no policy was announced yet"
        self._command = Command(ZERO_TWIST, State.DISABLED, "not active")
        return TransitionCallbackReturn.SUCCESS

    def _open(self) -> None:
        own = self._configured
        self._twist_type = TwistStamped if self._settings.stamped else Twist
        self._velocity = self.create_publisher(self._twist_type, "cmd_vel", qos.RELIABLE)
        self._reconstruction = self.create_publisher(LaserScanMessage, "~/reconstruction", qos.RELIABLE)
        self._markers = self.create_publisher(MarkerArray, "~/markers", qos.RELIABLE)
        own += [self._velocity, self._reconstruction, self._markers]
        own += [
            self.create_subscription(LaserScanMessage, "scan", self._on_scan, qos.SENSOR),
            self.create_subscription(OdometryMessage, "odom", self._on_odometry, qos.SENSOR),
            self.create_subscription(PoseStamped, "goal_pose", self._on_goal, qos.RELIABLE),
            self.create_subscription(String, "policy_updates", self._on_announced, qos.ANNOUNCEMENTS),
            # In a group of its own: while it waits for the loader, everything else goes on.
            self.create_service(
                Trigger, "~/load_policy", self._on_load, callback_group=MutuallyExclusiveCallbackGroup()
            ),
            self.create_service(SetBool, "~/enable", self._on_enable),
            self.create_service(Trigger, "~/stop", self._on_stop),
        ]

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to drive."""
        period = self.navigator.period
        self._timing = TickTiming(period)
        self._timer_period = period
        self._warm = False
        self._active = True
        self._timer = self.create_timer(period, self._tick, clock=self._steady)
        self._watching = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the robot and leave it alone."""
        self._stand("not active")
        self.destroy_timer(self._timer)
        self._watching.set()
        self._watchdog.join(1.0)
        self._report()
        return super().on_deactivate(state)

    def on_cleanup(self, _state: LifecycleState) -> TransitionCallbackReturn:
        """Close topics, forget the policy."""
        self._close()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, _state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the robot and close topics."""
        self.halt()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, _state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the robot; the node can be configured again."""
        self.halt()
        self._close()
        return TransitionCallbackReturn.SUCCESS

    def halt(self) -> None:
        """Send zero, whatever state the node is in; see `scanpilot_ros.running`."""
        if self._active:
            self._stand("shutting down")
            self._watching.set()
            running.flush(self._velocity)
            self._report()
            running.flush(self._status)
        if self._configured:
            self._loader.stop()

    def _stand(self, reason: str) -> None:
        with self._send_lock:
            self._active = False
            self._publish(ZERO_TWIST)
        self._command = Command(ZERO_TWIST, State.DISABLED, reason)

    def _close(self) -> None:
        self._loader.stop()
        for entity in self._configured:
            for destroy in (self.destroy_publisher, self.destroy_subscription, self.destroy_service):
                if destroy(entity):
                    break
        self._configured = []
        self._command = Command(ZERO_TWIST, State.DISABLED, "not configured")

    # Inputs

    def _on_scan(self, message: LaserScanMessage) -> None:
        now = time.monotonic()
        frame = convert.frame_id(message.header.frame_id)
        try:
            scan = convert.scan_from(message)
            if self._mount_known != frame:
                self._find_mount(frame, now)
        except InvalidInput as error:
            self.navigator.reject_scan(str(error), now)
            return
        self.navigator.set_scan(scan, now)

    def _on_odometry(self, message: OdometryMessage) -> None:
        now = time.monotonic()
        self._odometry_frame = convert.frame_id(message.header.frame_id)
        self._child_frame = convert.frame_id(message.child_frame_id)
        try:
            odometry = convert.odometry_from(message, self._settings.odom_twist_in_parent_frame)
        except InvalidInput as error:
            self.navigator.reject_odometry(str(error), now)
            return
        self.navigator.set_odometry(odometry, now)

    @property
    def _base_frame(self) -> str:
        return self._settings.base_frame or self._child_frame

    def _find_mount(self, frame: str, now: float) -> None:
        """Have the navigator know where the lidar with this frame sits.

        Raises:
            InvalidInput: it cannot be said (yet).
        """
        self._first_scan = now if self._first_scan is None else self._first_scan
        if self._settings.mount is not None or not (self._settings.lidar_from_tf and self._frames.has_tf):
            self._mount_known = frame
            return
        if not self._base_frame:
            raise InvalidInput("its mount is not known before odometry names the robot's frame")
        try:
            mount, flipped = self._frames.mount(self._base_frame, frame)
        except InvalidInput:
            if self._frames.known() or now - self._first_scan < _MOUNT_PATIENCE:
                raise
            self.get_logger().warning(
                f"nobody publishes TF: taking the mount of the lidar {frame!r} from the robot's description",
                once=True,
            )
            self._set_stated_mount()
            return
        where = f"x {mount.x:.3f} m, y {mount.y:.3f} m, yaw {mount.yaw:.3f} rad"
        self.get_logger().info(f"lidar {frame!r} sits at {where}{', upside down' if flipped else ''}")
        self.navigator.set_mount(mount, flipped)
        self._mount_known = frame

    def _set_stated_mount(self) -> None:
        """The mount that parameters or the robot file state; where neither does, the policy's stands."""
        mount = self._settings.mount
        if mount is None and self._robot is not None:
            mount = self._robot.lidar.mount
        if mount is not None:
            self.navigator.set_mount(mount, self._settings.lidar_flipped)

    # Goal

    def _on_goal(self, message: PoseStamped) -> None:
        frame = convert.frame_id(message.header.frame_id)
        try:
            pose = convert.pose_from(message.pose)
        except InvalidInput as error:
            self._goal = None
            self.navigator.reject_goal(str(error))
            self.get_logger().error(f"goal refused: {error}")
            return
        self._goal, self._goal_placed = (pose, frame), False
        self._place_goal()

    def _place_goal(self) -> None:
        """Tell the navigator where the goal lies now; its frame may move against odometry's."""
        if self._goal is None:
            return
        odometry = self.navigator.odometry
        if odometry is None:
            # A goal that was placed before stays; that odometry is missing is said by the navigator.
            if not self._goal_placed:
                self.navigator.reject_goal("cannot be placed without odometry")
            return
        pose, frame = self._goal
        if frame in ("", self._base_frame, self._child_frame) and frame != self._odometry_frame:
            # A goal relative to the robot is meant relative to where the robot is now.
            pose = compose(odometry.pose, pose) if frame else pose
            frame = self._odometry_frame
            self._goal = (pose, frame)
        try:
            goal = self._frames.goal_in(self._odometry_frame, pose, frame)
        except InvalidInput as error:
            self.navigator.reject_goal(str(error))
            return
        if self._goal_placed:
            self.navigator.move_goal(goal)
        else:
            self.navigator.set_goal(goal)
            self._goal_placed = True
            self.get_logger().info(f"goal ({goal.x:.2f}, {goal.y:.2f}) in {self._odometry_frame!r}")

    # Policies

    def _on_announced(self, message: String) -> None:
        self._loader.announce(message.data)

    async def _on_load(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        path = _policy_path(self.get_parameter("policy").value)
        if not path:
            response.success, response.message = False, "parameter 'policy' is empty"
            return response
        executor = self.executor
        future: Future = Future(executor=executor)

        def answer(ok: bool, message: str) -> None:
            future.set_result((ok, message))
            executor.wake()

        self._loader.watch(path, answer)
        response.success, response.message = await future
        return response

    def _await_tick(self) -> None:
        """From the loader's thread: the moment after a tick leaves it nearly a period to load in."""
        self._ticked.clear()
        if self._active:
            self._ticked.wait(2.0 * self._timer_period)

    def _accept(self, loaded: Loaded) -> None:
        """From the loader's thread: drive with this from the next tick on."""
        policy = loaded.policy
        if self._robot is not None and self._robot.kinematics != policy.robot.kinematics:
            raise InvalidInput(
                f"policy is for a {policy.robot.kinematics} robot, this one is {self._robot.kinematics}"
            )
        self.navigator.swap_policy(policy)
        self._path = loaded.path
        # rclpy writes its log while it holds the interpreter: on a busy disk that delays a tick.
        self.get_logger().info(
            f"policy {policy.name} {policy.identity} loaded from {loaded.path}", throttle_duration_sec=1.0
        )

    def _refused(self, reason: str) -> None:
        """From the loader's thread: a policy was not fit; the one before drives on."""
        self.navigator.no_policy_reason = f"policy refused: {reason}"
        self.get_logger().error(f"policy refused: {reason}")

    # Requests

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.navigator.enable(request.data)
        if not request.data:
            self._send(Command(ZERO_TWIST, State.DISABLED, "disabled by request"))
        response.success, response.message = True, "enabled" if request.data else "disabled"
        return response

    def _on_stop(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._goal = None
        self.navigator.clear_goal()
        self._send(Command(ZERO_TWIST, State.NO_GOAL, "stopped by request"))
        response.success, response.message = True, "stopped, the goal is forgotten"
        return response

    # Control

    def _tick(self) -> None:
        if not self._warm:
            self._warm = self.navigator.warm_up()
            self._timing = TickTiming(self._timer_period)
        begun = time.monotonic()
        self._timing.begin(begun)
        try:
            self._place_goal()
            command = self.navigator.tick(begun)
        except Exception as error:
            command = Command(ZERO_TWIST, State.FAILED, f"internal error: {type(error).__name__}: {error}")
            self.get_logger().error(command.reason, throttle_duration_sec=1.0)
        self._send(command)
        self._timing.end(begun, time.monotonic())
        self._ticked.set()
        self._keep_period()
        try:
            self._show(command)
        except Exception as error:
            # What is only looked at must not end what drives.
            self.get_logger().error(f"nothing to show: {error!r}", throttle_duration_sec=1.0)

    def _send(self, command: Command) -> None:
        with self._send_lock:
            if not self._active:
                return
            if command.twist != ZERO_TWIST:
                # The policy took its time; the input it used may have become stale meanwhile.
                problem = self.navigator.input_problem(time.monotonic())
                if problem is not None:
                    command = Command(ZERO_TWIST, State.BAD_INPUT, problem)
            self._publish(command.twist)
        self._command = command
        if self._reported is None or command.state is not self._reported[0]:
            self._report()

    def _publish(self, twist: Twist2D) -> None:
        """With the lock held."""
        self._moving = twist != ZERO_TWIST
        if self._settings.stamped:
            stamp = self.get_clock().now().to_msg()
            self._velocity.publish(convert.stamped_twist_message(twist, self._base_frame, stamp))
        else:
            self._velocity.publish(convert.twist_message(twist))

    def _watch(self) -> None:
        """The watchdog: zero at the moment an input becomes stale, without waiting for a tick."""
        while True:
            period = self._timer_period
            now = time.monotonic()
            until = self.navigator.stale_at() - now
            if until <= 0.0 and self._moving:
                problem = self.navigator.input_problem(now)
                if problem is not None:
                    self._send(Command(ZERO_TWIST, State.BAD_INPUT, problem))
            if self._watching.wait(min(until, 0.5 * period) + 0.001 if until > 0.0 else 0.25 * period):
                return

    def _keep_period(self) -> None:
        """Tick at the period of the policy that drives now."""
        period = self.navigator.period
        if period != self._timer_period:
            self._timer.timer_period_ns = int(period * 1e9)
            self._timer.reset()
            self._timer_period = period
            self._timing = TickTiming(period)

    # Reports

    def _show(self, command: Command) -> None:
        """Reconstruction and markers, where anybody looks."""
        policy, triplet = self.navigator.policy, command.triplet
        if policy is None:
            return
        stamp = self.get_clock().now().to_msg()
        if triplet is not None and self._reconstruction.get_subscription_count() > 0:
            self._reconstruction.publish(self._reconstruct(policy, triplet, stamp))
        if self._markers.get_subscription_count() > 0:
            self._markers.publish(
                markers.navigation(
                    command,
                    self.navigator.goal,
                    policy.robot,
                    (self._odometry_frame, self._base_frame),
                    stamp,
                )
            )

    def _reconstruct(self, policy: Policy, triplet: Any, stamp: Any) -> LaserScanMessage:
        spec = policy.observation
        return convert.scan_message(
            policy.reconstruct(triplet),
            float(spec.angles[0]),
            spec.sector,
            (spec.range_min, spec.range_max),
            self._base_frame,
            stamp,
        )

    def _report(self) -> None:
        """Publish the status; on every change of state and twice a second."""
        command = self._command
        changed = self._reported is None or command.state is not self._reported[0]
        self._reported = (command.state, command.reason)
        self._status.publish(self._status_message(command))
        if changed and command.reason:
            level = _LEVELS[command.state]
            log = self.get_logger()
            if level == DiagnosticStatus.ERROR:
                log.warning(f"{command.state.value}: {command.reason}", throttle_duration_sec=0.5)
            else:
                log.info(f"{command.state.value}: {command.reason}", throttle_duration_sec=0.5)

    def _diagnose(self) -> None:
        array = DiagnosticArray()
        array.header.stamp = self.get_clock().now().to_msg()
        if self._configured:
            self._check_listeners()
        array.status = [self._status_message(self._command)]
        self._diagnostics.publish(array)

    def _check_listeners(self) -> None:
        """Warn when those who listen to cmd_vel all want the other type: nothing would move, silently."""
        topic = self._velocity.topic_name
        types = {info.topic_type for info in self.get_subscriptions_info_by_topic(topic)}
        own, other = ("TwistStamped", "Twist") if self._settings.stamped else ("Twist", "TwistStamped")
        self._other_type = ""
        if f"geometry_msgs/msg/{other}" in types and f"geometry_msgs/msg/{own}" not in types:
            remedy = str(not self._settings.stamped).lower()
            self._other_type = (
                f"{topic} is published as {own}, but its subscribers want {other}: set stamped:={remedy}"
            )
            self.get_logger().warning(self._other_type, throttle_duration_sec=10.0)

    def _status_message(self, command: Command) -> DiagnosticStatus:
        level = _LEVELS[command.state]
        reason = command.reason
        if self._other_type:
            level, reason = max(level, DiagnosticStatus.WARN), f"{reason}; {self._other_type}"
        values: dict[str, Any] = {"state": command.state.value, "reason": reason}
        if self._configured:
            values.update(self._values())
        message = DiagnosticStatus(level=level, name=f"{self.get_fully_qualified_name()}: navigation")
        message.message = reason
        message.hardware_id = str(values.get("robot", ""))
        message.values = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
        return message

    def _values(self) -> dict[str, Any]:
        policy, record = self.navigator.policy, self._loader.record
        timing = getattr(self, "_timing", None) or TickTiming(DEFAULT_PERIOD)
        twist = self._command.twist
        return {
            "policy": "" if policy is None else policy.identity,
            "policy_name": "" if policy is None else policy.name,
            "policy_path": self._path,
            "robot": "" if policy is None else policy.robot.name,
            "policies_loaded": record.loaded,
            "policies_refused": record.refused,
            "policies_skipped": record.skipped,
            "last_refusal": record.last_refusal,
            **{
                f"{name} age (s)": f"{age:.3f}" for name, age in self.navigator.ages(time.monotonic()).items()
            },
            "time_resets": self.navigator.resets,
            "command": f"{twist.vx:.3f} {twist.vy:.3f} {twist.wz:.3f}",
            "control_period (s)": self.navigator.period,
            "ticks": timing.count,
            "tick_late_max (ms)": f"{1e3 * timing.late_max:.2f}",
            "tick_p50 (ms)": f"{1e3 * timing.duration(0.5):.2f}",
            "tick_p99 (ms)": f"{1e3 * timing.duration(0.99):.2f}",
            "tick_max (ms)": f"{1e3 * timing.duration_max:.2f}",
        }


def _policy_path(name: str) -> str:
    """A released policy's directory by its name; any other path as it is, for it may yet come to be."""
    try:
        return str(resources.find("policy", name)) if name else ""
    except FileNotFoundError:
        return name


def main(args: list[str] | None = None) -> int:
    """Run the node until it is told to end."""
    # One robot's network is too small to be worth a second thread, and robots have other work.
    torch.set_num_threads(1)
    # Threads take turns this often: a loading policy must not keep a tick waiting for 5 ms at a time.
    sys.setswitchinterval(5e-4)
    return running.run(PolicyNode, args)


if __name__ == "__main__":
    sys.exit(main())
