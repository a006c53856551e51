"""ROS parameters as frozen dataclasses: declared with description and range, read back validated.

A node states its parameters as fields made by `parameter`; `declare` and `read` do the rest, so a
parameter's name, default, unit, range and meaning stand in one place.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.parameter import Parameter

from scanpilot.guard import GuardConfig
from scanpilot.navigator import NavigatorConfig
from scanpilot.recovery import RecoveryConfig
from scanpilot.robot import RobotSpec
from scanpilot.types import InvalidInput, Pose2D

T = TypeVar("T")
# Pose of a lidar in base_link, and whether it hangs upside down.
Mount = tuple[Pose2D, bool]

# rclpy's own, which every node has without declaring them.
_FOREIGN = ("use_sim_time", "qos_overrides.", "start_type_description_service")


def parameter(
    default: Any,
    description: str,
    low: float | None = None,
    high: float | None = None,
    name: str | None = None,
    live: bool = False,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is a ROS parameter.

    Args:
        default: its type is the parameter's.
        description: with the unit, and what a special value such as 0 means.
        low: smallest allowed number.
        high: largest allowed number.
        name: the ROS name where it is not the field's, such as ``lidar.x``.
        live: may be changed while the node runs; others are read when it is configured.
        choices: of a text, where not every one is meant.
    """
    meta = {
        "description": description,
        "low": low,
        "high": high,
        "name": name,
        "live": live,
        "choices": choices,
    }
    return dataclasses.field(default=default, metadata=meta)


_UNITS = ("seconds", "metres", "radians", "m/s^3", "rad/s^3", "m/s^2", "rad/s^2", "m/s", "rad/s")


def as_markdown(cls: type[Any]) -> str:
    """The parameters of a dataclass as a table: name, default, unit, live or not, meaning."""
    lines = ["| parameter | default | unit | live | |", "|---|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        text = field.metadata["description"]
        unit = next((u for u in _UNITS if isinstance(field.default, float) and text.startswith(u)), "")
        default = ", ".join(map(repr, field.default)) if isinstance(field.default, tuple) else field.default
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""
        live = "yes" if field.metadata["live"] else ""
        lines.append(f"| `{_name(field)}` | {shown} | {unit} | {live} | {text} |")
    return "\n".join(lines) + "\n"


def declare(node: Node, cls: type[Any]) -> None:
    """Declare the parameters of a dataclass on a node.

    Raises:
        scanpilot.types.InvalidInput: one was given a value of the wrong type or out of range, or
            one was given that does not exist; the nearest known name is in the message.
    """
    known = {_name(f): f for f in dataclasses.fields(cls)}
    for given in node._parameter_overrides:
        if given not in known and not given.startswith(_FOREIGN):
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.0)[0]
            raise InvalidInput(f"unknown parameter {given!r}, the nearest known one is {near!r}")
    try:
        for name, field in known.items():
            node.declare_parameter(name, field.default, _descriptor(field))
    except ParameterException as error:
        raise InvalidInput(f"parameter {name!r}: {error}") from error


def read(node: Node, cls: type[T]) -> T:
    """The current values of the parameters of a dataclass.

    Raises:
        scanpilot.types.InvalidInput: a value has the wrong type or is out of range.
    """
    assert dataclasses.is_dataclass(cls)
    values = {f.name: _value(f, node.get_parameter(_name(f)).value) for f in dataclasses.fields(cls)}
    return cls(**values)


def changed(settings: T, parameters: Sequence[Parameter]) -> T:
    """``settings`` with some parameters changed while the node runs.

    Raises:
        scanpilot.types.InvalidInput: one cannot be changed now, or has no such value.
    """
    assert dataclasses.is_dataclass(settings)
    known = {_name(f): f for f in dataclasses.fields(settings)}
    values: dict[str, Any] = {}
    for parameter in parameters:
        field = known.get(parameter.name)
        if field is None:
            continue
        if not field.metadata["live"]:
            raise InvalidInput(
                f"parameter {parameter.name!r} is read when the node is configured: deactivate and clean it "
                "up first, or start it again"
            )
        values[field.name] = _value(field, parameter.value)
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def _name(field: dataclasses.Field[Any]) -> str:
    return field.metadata["name"] or field.name


def _descriptor(field: dataclasses.Field[Any]) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=field.metadata["description"])
    low, high = field.metadata["low"], field.metadata["high"]
    if isinstance(field.default, float):
        # So that 1 is taken where 1.0 is meant; `_value` checks the type.
        descriptor.dynamic_typing = True
    if low is None or high is None or field.default != field.default:
        # rclpy finds nan, our "not stated", outside of any range; `_value` checks the others.
        return descriptor
    if isinstance(field.default, float):
        descriptor.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
    else:
        descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
    return descriptor


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    name, default = _name(field), field.default
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidInput(f"parameter {name!r} is {value!r}, expected a number")
        value = float(value)
        low, high = field.metadata["low"], field.metadata["high"]
        outside = low is not None and high is not None and not low <= value <= high
        if outside and not (math.isnan(value) and math.isnan(default)):
            raise InvalidInput(f"parameter {name!r} is {value}, expected {low} to {high}")
    elif isinstance(default, tuple):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise InvalidInput(f"parameter {name!r} is {value!r}, expected a list of texts")
        value = tuple(value)
    elif not isinstance(value, type(default)):
        raise InvalidInput(f"parameter {name!r} is {value!r}, expected {type(default).__name__}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise InvalidInput(f"parameter {name!r} is {value!r}, expected one of {', '.join(choices)}")
    return value


def _mount(text: str) -> Mount | None:
    """A mount from ``'x y yaw'`` or ``'x y yaw flipped'``."""
    words = text.split()
    if not words:
        return None
    try:
        x, y, yaw = map(float, words[:3])
    except ValueError:
        x = math.nan
    if not math.isfinite(x) or not math.isfinite(y + yaw) or words[3:] not in ([], ["flipped"]):
        raise InvalidInput(f"lidar.mounts has {text!r}, expected such as '0.2 0 1.57' or '0 0 0 flipped'")
    return Pose2D(x, y, yaw), bool(words[3:])


@dataclasses.dataclass(frozen=True)
class PolicyNodeParameters:
    """Parameters of the policy node. Each number says its unit in its description."""

    policy: str = parameter(
        "",
        "policy directory, or a symlink to one; watched, so that a new policy put there is loaded",
        live=True,
    )
    robot: str = parameter(
        "",
        "YAML file of the robot, where it is not the one the policy was trained for: tighter limits, lidar",
    )
    backend: str = parameter(
        "auto",
        "what runs the policy: torch, onnx, or auto: torch where it is installed, else onnx",
        choices=("auto", "torch", "onnx"),
    )
    autostart: bool = parameter(True, "configure and activate without a lifecycle manager")
    control_period: float = parameter(0.0, "seconds between commands; 0: the policy's", 0.0, 2.0)
    tick_on_scan: bool = parameter(
        False,
        "act at once when a scan comes, instead of at fixed times; scans should come once a control period",
    )
    scan_timeout: float = parameter(
        0.0,
        "seconds without a scan after which the robot stops; 0: 1.75 control periods",
        0.0,
        10.0,
        live=True,
    )
    odom_timeout: float = parameter(
        0.0,
        "seconds without odometry after which the robot stops; 0: 1.75 control periods",
        0.0,
        10.0,
        live=True,
    )
    goal_tolerance: float = parameter(
        0.3, "metres; nearer than this the goal is reached", 0.01, 10.0, live=True
    )
    goal_heading_tolerance: float = parameter(
        0.0,
        "radians; at the goal the robot turns until it is this near to the goal's heading. "
        "0: the heading does not matter",
        0.0,
        math.pi,
    )
    plan_lookahead: float = parameter(
        1.5, "metres ahead on a plan of the sub-goal that the policy is given", 0.6, 10.0
    )
    navigate_to_pose: bool = parameter(
        True,
        "offer Nav2's action navigate_to_pose where nav2_msgs is there; false beside Nav2's bt_navigator",
    )
    follow_path: bool = parameter(
        False,
        "offer Nav2's action follow_path where nav2_msgs is there, in place of Nav2's controller server",
    )
    goal_hysteresis: float = parameter(
        0.15,
        "metres beyond the tolerance that a reached goal may move before the robot sets off again",
        0.0,
        10.0,
        live=True,
    )
    stamped: bool = parameter(False, "publish cmd_vel as TwistStamped instead of Twist")
    odom_twist_in_parent_frame: bool = parameter(
        False, "for drivers that state the velocity in the odometry frame, against REP-105"
    )
    base_frame: str = parameter("", "frame of the robot; empty: the odometry's child frame")
    vx: float = parameter(
        0.0, "m/s, tighter than the policy's; 0: the policy's", 0.0, 100.0, "limits.vx", live=True
    )
    vy: float = parameter(
        0.0, "m/s, tighter than the policy's; 0: the policy's", 0.0, 100.0, "limits.vy", live=True
    )
    wz: float = parameter(
        0.0, "rad/s, tighter than the policy's; 0: the policy's", 0.0, 100.0, "limits.wz", live=True
    )
    ax: float = parameter(
        0.0, "m/s^2, tighter than the policy's; 0: the policy's", 0.0, 1000.0, "limits.ax", live=True
    )
    ay: float = parameter(
        0.0, "m/s^2, tighter than the policy's; 0: the policy's", 0.0, 1000.0, "limits.ay", live=True
    )
    awz: float = parameter(
        0.0, "rad/s^2, tighter than the policy's; 0: the policy's", 0.0, 1000.0, "limits.awz", live=True
    )
    jx: float = parameter(0.0, "m/s^3, bound of the jerk; 0: none", 0.0, 1000.0, "limits.jx", live=True)
    jy: float = parameter(0.0, "m/s^3, bound of the jerk; 0: none", 0.0, 1000.0, "limits.jy", live=True)
    jwz: float = parameter(0.0, "rad/s^3, bound of the jerk; 0: none", 0.0, 1000.0, "limits.jwz", live=True)
    guard_enabled: bool = parameter(
        True, "slow down and stop before what the lidar sees", name="guard.enabled", live=True
    )
    guard_time_before_collision: float = parameter(
        0.4,
        "seconds; slow down until the commanded arc meets nothing for so long. Braking distance is kept "
        "in any case; 0 leaves it at that",
        0.0,
        10.0,
        "guard.time_before_collision",
        live=True,
    )
    guard_simulation_time_step: float = parameter(
        0.1,
        "seconds between two poses of the arc that are checked",
        0.01,
        1.0,
        "guard.simulation_time_step",
        live=True,
    )
    guard_min_points: int = parameter(
        1, "points in the footprint that are taken for an obstacle", 1, 100, "guard.min_points", live=True
    )
    guard_base_shift_correction: bool = parameter(
        True,
        "move the points by what the robot has driven since they were measured",
        name="guard.base_shift_correction",
        live=True,
    )
    guard_footprint_padding: float = parameter(
        0.03,
        "metres kept between footprint and any point",
        0.0,
        1.0,
        "guard.footprint_padding",
        live=True,
    )
    guard_escape_padding: float = parameter(
        0.01, "metres kept at the escape speed", 0.0, 1.0, "guard.escape_padding", live=True
    )
    guard_latency: float = parameter(
        0.0,
        "seconds that a scan is old when it arrives, and a command takes on top of the robot's "
        "actuation_delay",
        0.0,
        2.0,
        "guard.latency",
        live=True,
    )
    guard_deceleration: float = parameter(
        0.0,
        "m/s^2 that the base brakes with; 0: the robot's limit of acceleration",
        0.0,
        100.0,
        "guard.deceleration",
        live=True,
    )
    guard_escape_speed: float = parameter(
        0.1,
        "m/s at which the robot may come nearer than the padding, and at most while something is",
        0.01,
        1.0,
        "guard.escape_speed",
        live=True,
    )
    recovery_enabled: bool = parameter(
        True, "notice that the robot gets nowhere, and try to free it", name="recovery.enabled", live=True
    )
    recovery_required_movement_radius: float = parameter(
        0.5,
        "metres that the robot must get away within movement_time_allowance",
        0.01,
        100.0,
        "recovery.required_movement_radius",
        live=True,
    )
    recovery_movement_time_allowance: float = parameter(
        10.0,
        "seconds without that movement after which it is stuck",
        0.1,
        1000.0,
        "recovery.movement_time_allowance",
        live=True,
    )
    recovery_blocked_time_allowance: float = parameter(
        2.0,
        "seconds held by the guard after which it is stuck",
        0.1,
        1000.0,
        "recovery.blocked_time_allowance",
        live=True,
    )
    recovery_circling_turns: float = parameter(
        2.0,
        "turns the same way, without coming nearer to the goal, that are circling",
        0.5,
        100.0,
        "recovery.circling_turns",
        live=True,
    )
    recovery_behaviors: tuple[str, ...] = parameter(
        ("wait", "spin", "backup"),
        "tried in this order, one each time: wait, spin to the free side, backup where that is seen free",
        name="recovery.behaviors",
        live=True,
    )
    recovery_number_of_retries: int = parameter(
        6, "behaviors tried before giving up", 0, 1000, "recovery.number_of_retries", live=True
    )
    recovery_wait_duration: float = parameter(
        2.0, "seconds", 0.1, 1000.0, "recovery.wait_duration", live=True
    )
    recovery_spin_speed: float = parameter(0.8, "rad/s", 0.01, 10.0, "recovery.spin_speed", live=True)
    recovery_backup_dist: float = parameter(0.3, "metres", 0.01, 10.0, "recovery.backup_dist", live=True)
    recovery_backup_speed: float = parameter(0.1, "m/s", 0.01, 10.0, "recovery.backup_speed", live=True)
    recovery_time_allowance: float = parameter(
        10.0,
        "seconds after which a behavior ends in any case",
        0.1,
        1000.0,
        "recovery.time_allowance",
        live=True,
    )
    scan_topics: tuple[str, ...] = parameter(("scan",), "topics of the lidars, one for each")
    lidar_from_tf: bool = parameter(
        True,
        "take the lidar's mount from TF where tf2_ros is there; else from the robot",
        name="lidar.from_tf",
    )
    lidar_x: float = parameter(
        math.nan, "metres, mount of the lidar in base_link; nan: from TF or the robot", -10.0, 10.0, "lidar.x"
    )
    lidar_y: float = parameter(
        math.nan, "metres, mount of the lidar in base_link; nan: from TF or the robot", -10.0, 10.0, "lidar.y"
    )
    lidar_yaw: float = parameter(
        math.nan,
        "radians, mount of the lidar in base_link; nan: from TF or the robot",
        -7.0,
        7.0,
        "lidar.yaw",
    )
    lidar_flipped: bool = parameter(
        False, "the lidar hangs upside down; with lidar.x, y or yaw", name="lidar.flipped"
    )
    lidar_mounts: tuple[str, ...] = parameter(
        ("",),
        "for several lidars, instead of lidar.x and so on: 'x y yaw' of each in metres and radians, and "
        "'flipped' after it for one that hangs upside down; '': from TF or the robot",
        name="lidar.mounts",
    )

    @property
    def mounts(self) -> tuple[Mount | None, ...]:
        """The mount of each of the lidars where parameters state one; what they leave out is 0.

        Raises:
            scanpilot.types.InvalidInput: they contradict each other or are no mounts.
        """
        lidars = len(self.scan_topics)
        if lidars == 0 or len(set(self.scan_topics)) < lidars or "" in self.scan_topics:
            raise InvalidInput(f"scan_topics is {list(self.scan_topics)}, expected names that differ")
        stated = (self.lidar_x, self.lidar_y, self.lidar_yaw)
        one = not all(math.isnan(v) for v in stated)
        if self.lidar_mounts == ("",):
            if one and lidars > 1:
                raise InvalidInput("lidar.x, y and yaw are for one lidar: state lidar.mounts for several")
            pose = Pose2D(*(0.0 if math.isnan(v) else v for v in stated))
            return ((pose, self.lidar_flipped) if one else None,) * lidars
        if one or len(self.lidar_mounts) != lidars:
            raise InvalidInput(
                f"lidar.mounts states {len(self.lidar_mounts)} lidars, scan_topics {lidars}"
                f"{', and lidar.x, y or yaw is stated too' if one else ''}"
            )
        return tuple(_mount(text) for text in self.lidar_mounts)

    def navigator_config(self, robot: RobotSpec | None) -> NavigatorConfig:
        """What the navigator needs of these, with the limits of ``robot`` where none is stated."""
        limits = {name: getattr(self, name) or None for name in ("vx", "vy", "wz", "ax", "ay", "awz")}
        if robot is not None:
            for name, stated in limits.items():
                own = getattr(robot.limits, name)
                limits[name] = own if stated is None and math.isfinite(own) else stated
        return NavigatorConfig(
            control_period=self.control_period or None,
            scan_timeout=self.scan_timeout or None,
            odometry_timeout=self.odom_timeout or None,
            goal_tolerance=self.goal_tolerance,
            goal_hysteresis=self.goal_hysteresis,
            heading_tolerance=self.goal_heading_tolerance,
            jx=self.jx or None,
            jy=self.jy or None,
            jwz=self.jwz or None,
            guard=GuardConfig(
                **{**self._group(GuardConfig), "deceleration": self.guard_deceleration or None}
            ),
            recovery=RecoveryConfig(**self._group(RecoveryConfig)),
            robot=robot,
            **limits,
        )

    def _group(self, cls: type[GuardConfig] | type[RecoveryConfig]) -> dict[str, Any]:
        """The parameters of one part, such as ``guard.min_points``, by the names of its own fields."""
        prefix = "guard" if cls is GuardConfig else "recovery"
        return {f.name: getattr(self, f"{prefix}_{f.name}") for f in dataclasses.fields(cls)}


_BEGIN, _END = "<!-- made by: python -m scanpilot_ros.parameters docs/robot.md -->\n", "<!-- end -->"


def with_table(manual: str) -> str:
    """A manual with the table of the policy node's parameters between its two marks."""
    before, begin, rest = manual.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return "".join((before, begin, as_markdown(PolicyNodeParameters), end, after))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
