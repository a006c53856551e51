"""The part of ``scanpilot doctor`` that needs no ROS: this machine's environment; how findings are shown."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from scanpilot import __version__, checkpoint, resources
from scanpilot.diagnosis import Finding, Level
from scanpilot.policy import Policy

SUPPORTED = ("humble", "jazzy", "kilted", "lyrical")
_MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "error": ("ERROR", "bold red"),
}


def examine_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Python, packages, ROS and how its nodes find each other."""
    yield _python()
    yield from _packages()
    yield from _ros(environment)
    yield from _discovery(environment)


def _python() -> Finding:
    # One that is too old could not have imported this module.
    found = f"Python {platform.python_version()} ({sys.executable}), scanpilot {__version__}"
    return Finding("ok", "python", found)


def _packages() -> Iterator[Finding]:
    there = {name: _version(name) for name in ("torch", "onnxruntime")}
    if not any(there.values()):
        yield Finding(
            "error", "packages", "neither torch nor onnxruntime: no policy can run", "pip install onnxruntime"
        )
    else:
        words = ", ".join(f"{name} {version}" for name, version in there.items() if version)
        yield Finding("ok", "packages", f"{words}, numpy {_version('numpy')}")


def _ros(environment: Mapping[str, str]) -> Iterator[Finding]:
    distribution = environment.get("ROS_DISTRO", "")
    if importlib.util.find_spec("rclpy") is None:
        remedy = (
            f"use the Python that ROS 2 {distribution} was built for (usually /usr/bin/python3)"
            if distribution
            else "source ROS 2 (source /opt/ros/DISTRO/setup.bash) or run make setup"
        )
        yield Finding("error", "ros", f"rclpy cannot be imported by {sys.executable}", remedy)
        return
    if distribution and distribution not in SUPPORTED:
        yield Finding(
            "warning",
            "ros",
            f"ROS 2 {distribution}: not among those tested ({', '.join(SUPPORTED)})",
            "use one of them if something is odd",
        )
    else:
        yield Finding(
            "ok", "ros", f"ROS 2 {distribution}" if distribution else f"ROS 2 from wheels{_wheels()}"
        )
    absent = [
        m
        for m in ("sensor_msgs", "nav_msgs", "geometry_msgs", "diagnostic_msgs", "visualization_msgs")
        if importlib.util.find_spec(m) is None
    ]
    if absent:
        packages = " ".join(f"ros-{distribution or 'jazzy'}-{m.replace('_', '-')}" for m in absent)
        yield Finding("error", "ros", f"not installed: {', '.join(absent)}", f"install {packages}")
    if importlib.util.find_spec("tf2_ros") is None:
        yield Finding(
            "note",
            "ros",
            "no tf2_ros: goals only in the odometry's and the robot's frame, no mount of the lidar from TF",
            f"install ros-{distribution}-tf2-ros" if distribution else "",
        )


def _wheels() -> str:
    """Which distribution the wheels are of; more than one may be on the path, and the first counts."""
    spec = importlib.util.find_spec("rclpy")
    for name in SUPPORTED:
        try:
            wheel = metadata.distribution(f"ros-{name}-rclpy")
        except metadata.PackageNotFoundError:
            continue
        if spec is not None and str(wheel.locate_file("rclpy/__init__.py")) == spec.origin:
            return f" ({name})"
    return ""


def _discovery(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What decides which other nodes can be seen."""
    names = (
        "ROS_DOMAIN_ID",
        "RMW_IMPLEMENTATION",
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        "ROS_LOCALHOST_ONLY",
        "ROS_STATIC_PEERS",
        "ROS_DISCOVERY_SERVER",
    )
    stated = [f"{name}={environment[name]}" for name in names if environment.get(name)]
    yield Finding("ok", "discovery", ", ".join(stated) or "all defaults: domain 0, the whole subnet")
    domain = environment.get("ROS_DOMAIN_ID", "")
    if domain and not (domain.isdigit() and int(domain) <= 101):
        yield Finding(
            "error",
            "discovery",
            f"ROS_DOMAIN_ID is {domain!r}",
            "set a number from 0 to 101, the robot's own",
        )
    hidden = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").upper()
    if hidden == "OFF":
        yield Finding(
            "error",
            "discovery",
            "ROS_AUTOMATIC_DISCOVERY_RANGE=OFF: no node sees another",
            "unset ROS_AUTOMATIC_DISCOVERY_RANGE, or name the robot in ROS_STATIC_PEERS",
        )
    for name in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE", "CYCLONEDDS_URI"):
        path = environment.get(name, "").removeprefix("file://")
        if path and not path.lstrip().startswith("<") and not Path(path).is_file():
            yield Finding("error", "discovery", f"{name} names {path}, which is not there", f"unset {name}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # Built from source, as torch is on some boards, and no less there.
        return "(version unknown)" if importlib.util.find_spec(package.replace("-", "_")) else ""


def examine_policy(name: str) -> tuple[Policy | None, Finding]:
    """Whether a policy loads."""
    try:
        policy = checkpoint.load_policy(resources.find("policy", name))
    except (FileNotFoundError, checkpoint.CheckpointError) as error:
        return None, Finding("error", "policy", str(error), "name a released policy or a policy directory")
    robot = policy.robot
    return policy, Finding(
        "ok",
        "policy",
        f"{policy.name} {policy.identity} by {policy.inference.backend}: for {robot.name} "
        f"({robot.kinematics}, {robot.limits.vx:g} m/s), every {policy.control_period:g} s",
    )


def show(findings: Sequence[Finding]) -> None:
    """Print findings for people, what is wrong with its remedy below it."""
    console = Console(highlight=False, soft_wrap=True)
    width = max((len(f.subject) for f in findings), default=0)
    for finding in findings:
        mark, style = _MARKS[finding.level]
        line = Text(f"{mark:>7}  ", style=style)
        line.append(f"{finding.subject:<{width}}  ", style="bold")
        line.append(finding.message, style="default")
        console.print(line)
        if finding.remedy:
            console.print(Text(f"{'':>7}  {'':<{width}}  -> {finding.remedy}"))
    errors, warnings = (sum(f.level == level for f in findings) for level in ("error", "warning"))
    console.print(f"{errors} errors, {warnings} warnings")


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings for machines."""
    return {
        "ok": exit_code(findings) == 0,
        "findings": [dataclasses.asdict(f) for f in findings],
        "environment": {
            k: v for k, v in sorted(os.environ.items()) if k.startswith(("ROS_", "RMW_", "AMENT_"))
        },
    }


def exit_code(findings: Sequence[Finding]) -> int:
    """0: nothing keeps the robot from driving; 1: something does."""
    return int(any(f.level == "error" for f in findings))
