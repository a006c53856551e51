"""The policy node: scan, odometry and goal in, velocity out; the policy is replaced while it drives.

A lifecycle node that starts itself unless ``autostart`` is false. What the robot does and why is on
``~/status``; every way out of driving (goal reached, bad input, deactivation, signal, exception)
sends zero velocity.

Threads: the executor's runs every callback and the control timer; the policy loader's only offers
new policies; the watchdog's only ever sends zero, between two ticks, when an input becomes stale.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
from typing import Any, cast

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry as OdometryMessage
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy
from rclpy.task import Future
from sensor_msgs.msg import LaserScan as LaserScanMessage
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger
from visualization_msgs.msg import MarkerArray

from scanpilot import resources
from scanpilot.audit import OdometryAudit
from scanpilot.checkpoint import Backend
from scanpilot.configuration import ConfigurationError
from scanpilot.navigator import DEFAULT_PERIOD, Command, Navigator, State
from scanpilot.policy import Policy
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.types import ZERO_TWIST, InvalidInput, Twist2D
from scanpilot_ros import convert, markers, qos, running
from scanpilot_ros.actions import Actions
from scanpilot_ros.frames import Frames
from scanpilot_ros.hot_loading import Loaded, PolicyLoader
from scanpilot_ros.lidars import Lidars
from scanpilot_ros.parameters import PolicyNodeParameters, changed, declare, read
from scanpilot_ros.reports import LEVELS, Stream, status_message, stream_values
from scanpilot_ros.routes import Routes
from scanpilot_ros.timing import TickTiming

_STATUS_SECONDS = 0.5
_DIAGNOSTICS_SECONDS = 1.0
# The executor must show at least this often that it turns; after so long a silence the robot is stopped.
_PULSE_SECONDS = 0.1
_HANG_SECONDS = 0.2
# With tick_on_scan: a scan sooner after a tick than this part of a period waits for the next one, and
# after so many periods without a scan the timer ticks all the same.
_SOONEST, _LATEST = 0.7, 1.5


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
        self._alive = time.monotonic()
        self._hangs = 0
        self._command = Command(ZERO_TWIST, State.DISABLED, "not configured")
        self._failure = ""
        self._status = self.create_publisher(DiagnosticStatus, "~/status", qos.LATCHED)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.RELIABLE)
        self._reported: tuple[State, str] | None = None
        self._other_type = ""
        self.create_timer(_STATUS_SECONDS, self._report, clock=self._steady)
        self.create_timer(_DIAGNOSTICS_SECONDS, self._diagnose, clock=self._steady)
        self._configured: list[Any] = []
        self.add_on_set_parameters_callback(self._on_parameters)
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
            _ = self._settings.mounts
        except (InvalidInput, ConfigurationError, FileNotFoundError) as error:
            self._failure = str(error)
            self.get_logger().error(self._failure)
            return TransitionCallbackReturn.FAILURE
        self._robot: RobotSpec | None = robot
        scans = [self.resolve_topic_name(topic) for topic in self._settings.scan_topics]
        odom, goal = (self.resolve_topic_name(topic) for topic in ("odom", "goal_pose"))
        self.navigator = Navigator(config, None, scans, odom, goal)
        self._frames = Frames(self)
        self._odometry_frame = ""
        self._child_frame = ""
        self._odometry_audit = OdometryAudit()
        self._path = ""
        self._streams: dict[str, Stream] = {}
        self._open()
        self._loader = PolicyLoader(
            cast(Backend, self._settings.backend), self._accept, self._refused, self._await_tick
        )
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
            self.create_subscription(OdometryMessage, "odom", self._on_odometry, qos.SENSOR),
            self.create_subscription(String, "policy_updates", self._on_announced, qos.ANNOUNCEMENTS),
            # In a group of its own: while it waits for the loader, everything else goes on.
            self.create_service(
                Trigger, "~/load_policy", self._on_load, callback_group=MutuallyExclusiveCallbackGroup()
            ),
            self.create_service(SetBool, "~/enable", self._on_enable),
            self.create_service(Trigger, "~/stop", self._on_stop),
        ]
        self._lidars = Lidars(
            self,
            self.navigator,
            self._frames,
            self._settings,
            self._robot,
            base_frame=lambda: self._base_frame,
            before=self._note,
            after=self._on_scan,
        )
        self._routes = Routes(self, self.navigator, self._frames, self._settings, self._own_frames)
        self._actions = Actions(self, self.navigator, self._routes, self._settings)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to drive."""
        period = self.navigator.period
        self._timing = TickTiming(period)
        self._timer_period = period
        self._begun = -math.inf
        self._warm = False
        self._active = True
        self._timer = self.create_timer(self._timer_seconds(period), self._tick, clock=self._steady)
        self._watching = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()
        self._pulse = self.create_timer(_PULSE_SECONDS, self._beat, clock=self._steady)
        self._beat()
        self._hang_watchdog = threading.Thread(target=self._watch_loop, name="hang watchdog", daemon=True)
        self._hang_watchdog.start()
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the robot and leave it alone."""
        self._stand("not active")
        self.destroy_timer(self._timer)
        self.destroy_timer(self._pulse)
        self._watching.set()
        self._watchdog.join(1.0)
        self._hang_watchdog.join(1.0)
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
        self._actions.close()
        for entity in (*self._configured, *self._lidars.subscriptions, *self._routes.subscriptions):
            for destroy in (self.destroy_publisher, self.destroy_subscription, self.destroy_service):
                if destroy(entity):
                    break
        self._configured = []
        self._command = Command(ZERO_TWIST, State.DISABLED, "not configured")

    # Inputs

    def _on_scan(self, now: float) -> None:
        """A scan was taken: act on it at once where that is wanted."""
        if self._settings.tick_on_scan and self._active and now - self._begun > _SOONEST * self._timer_period:
            self._timer.reset()
            self._tick()

    def _on_odometry(self, message: OdometryMessage) -> None:
        now = time.monotonic()
        self._note("odom", message, now)
        self._odometry_frame = convert.frame_id(message.header.frame_id)
        self._child_frame = convert.frame_id(message.child_frame_id)
        try:
            odometry = convert.odometry_from(message, self._settings.odom_twist_in_parent_frame)
        except InvalidInput as error:
            self.navigator.reject_odometry(str(error), now)
            return
        self.navigator.set_odometry(odometry, now)
        if not self._settings.odom_twist_in_parent_frame:
            self._odometry_audit.add(odometry)

    def _note(self, topic: str, message: Any, now: float) -> None:
        """For the reports: that a message of this topic came."""
        stream = self._streams.setdefault(self.resolve_topic_name(topic), Stream())
        stream.arrived(now, convert.seconds(message.header.stamp), 1e-9 * self.get_clock().now().nanoseconds)

    @property
    def _base_frame(self) -> str:
        return self._settings.base_frame or self._child_frame

    def _own_frames(self) -> tuple[str, set[str]]:
        """The odometry's frame, and those that mean the robot."""
        robot = {self._base_frame, self._child_frame} - {"", self._odometry_frame}
        return self._odometry_frame, robot

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
        self._routes.cancel()
        self._send(Command(ZERO_TWIST, State.NO_GOAL, "stopped by request"))
        response.success, response.message = True, "stopped, the goal is forgotten"
        return response

    # Control

    def _tick(self) -> None:
        if not self._warm:
            self._warm = self.navigator.warm_up()
            # What start-up has made stays: looking through all of it for garbage takes a tick 0.1 s.
            gc.freeze()
            self._timing = TickTiming(self._timer_period)
        self._begun = begun = time.monotonic()
        self._timing.begin(begun)
        try:
            self._routes.place()
            command = self.navigator.tick(begun)
        except Exception as error:
            command = Command(ZERO_TWIST, State.FAILED, f"internal error: {type(error).__name__}: {error}")
            self.get_logger().error(command.reason, throttle_duration_sec=1.0)
            self.navigator.stopped()
        self._send(command)
        self._timing.end(begun, time.monotonic())
        self._beat()
        self._ticked.set()
        self._keep_period()
        try:
            self._actions.update(self._command)
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
            try:
                self._report()
            except Exception as error:
                # Watchdogs send from their own threads, which must live on whatever is wrong with a report.
                self.get_logger().error(f"nothing to report: {error!r}", throttle_duration_sec=1.0)

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

    def _beat(self) -> None:
        """The executor still turns."""
        self._alive = time.monotonic()

    def _watch_loop(self) -> None:
        """The other watchdog: zero when the executor hangs, whatever locks it holds but that for sending.

        In a thread of its own, for the first one asks the navigator, which may be what hangs.
        """
        while not self._watching.wait(_HANG_SECONDS / 10.0):
            silent = time.monotonic() - self._alive
            if self._moving and silent > _HANG_SECONDS:
                self._hangs += 1
                self._send(Command(ZERO_TWIST, State.FAILED, f"the control loop hangs for {silent:.2f} s"))

    def _keep_period(self) -> None:
        """Tick at the period of the policy that drives now."""
        period = self.navigator.period
        if period != self._timer_period:
            self._timer.timer_period_ns = int(self._timer_seconds(period) * 1e9)
            self._timer.reset()
            self._timer_period = period
            self._timing = TickTiming(period)

    def _timer_seconds(self, period: float) -> float:
        """Of the control timer; where scans call for ticks it only fills in for them."""
        return _LATEST * period if self._settings.tick_on_scan else period

    # Parameters

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        """Take new values while running where that is safe, all of them or none."""
        if not self._configured:
            return SetParametersResult(successful=True)
        try:
            settings = changed(self._settings, parameters)
            self.navigator.reconfigure(settings.navigator_config(self._robot))
        except (InvalidInput, ConfigurationError) as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._settings = settings
        return SetParametersResult(successful=True)

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
            level = LEVELS[command.state]
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
        """Warn when those who listen to cmd_vel cannot hear it: nothing would move, silently."""
        topic = self._velocity.topic_name
        listeners = self.get_subscriptions_info_by_topic(topic)
        types = {info.topic_type for info in listeners}
        own, other = ("TwistStamped", "Twist") if self._settings.stamped else ("Twist", "TwistStamped")
        self._other_type = ""
        if f"geometry_msgs/msg/{other}" in types and f"geometry_msgs/msg/{own}" not in types:
            remedy = str(not self._settings.stamped).lower()
            self._other_type = (
                f"{topic} is published as {own}, but its subscribers want {other}: set stamped:={remedy}"
            )
        deaf = [
            i.node_name for i in listeners if i.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
        ]
        if deaf:
            # To send it a stored velocity, long out of date, would be worse.
            names = ", ".join(deaf)
            self._other_type = (
                f"{topic}: {names} asks for TRANSIENT_LOCAL and hears nothing: subscribe as VOLATILE"
            )
        if self._other_type:
            self.get_logger().warning(self._other_type, throttle_duration_sec=10.0)

    def _status_message(self, command: Command) -> DiagnosticStatus:
        values = self._values() if self._configured else {}
        warnings = "; ".join(filter(None, (self._other_type, self._odometry_warning())))
        return status_message(self.get_fully_qualified_name(), command, warnings, values)

    def _odometry_warning(self) -> str:
        if not self._configured or not self._odometry_audit.in_parent_frame:
            return ""
        return (
            "the velocity in odometry looks as if stated in the odometry frame, against REP-105: "
            "set odom_twist_in_parent_frame:=true"
        )

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
            "backend": "" if policy is None else policy.inference.backend,
            **stream_values(self._streams, self.navigator.ages(time.monotonic())),
            "time_resets": self.navigator.resets,
            **self._lidars.values(),
            **self._guard_values(),
            "command": f"{twist.vx:.3f} {twist.vy:.3f} {twist.wz:.3f}",
            "control_period (s)": self.navigator.period,
            "ticks": timing.count,
            "tick_late_max (ms)": f"{1e3 * timing.late_max:.2f}",
            "tick_p50 (ms)": f"{1e3 * timing.duration(0.5):.2f}",
            "tick_p99 (ms)": f"{1e3 * timing.duration(0.99):.2f}",
            "tick_max (ms)": f"{1e3 * timing.duration_max:.2f}",
        }

    def _guard_values(self) -> dict[str, Any]:
        counts = self.navigator.guard_counts
        return {
            "guard": "on" if self._settings.guard_enabled else "off",
            "guard_ticks": counts.ticks,
            "guard_slowed": counts.slowed,
            "guard_stopped": counts.stopped,
            "guard_rate": f"{counts.rate:.4f}",
            "recoveries": self.navigator.recoveries,
            "hangs": self._hangs,
        }


def _policy_path(name: str) -> str:
    """A released policy's directory by its name; any other path as it is, for it may yet come to be."""
    try:
        return str(resources.find("policy", name)) if name else ""
    except FileNotFoundError:
        return name


def main(args: list[str] | None = None) -> int:
    """Run the node until it is told to end."""
    # One robot's network is too small to be worth a second thread, and robots have other work. Torch reads
    # this when the first policy that needs it is loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Threads take turns this often: a loading policy must not keep a tick waiting for 5 ms at a time.
    sys.setswitchinterval(5e-4)
    return running.run(PolicyNode, args)


if __name__ == "__main__":
    sys.exit(main())
