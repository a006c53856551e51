"""The robot's lidars: subscriptions, where each sits, and what their drivers got wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import LaserScan as LaserScanMessage

from scanpilot.audit import ScanAudit
from scanpilot.navigator import Navigator
from scanpilot.observation import moves_much
from scanpilot.robot import RobotSpec
from scanpilot.types import InvalidInput
from scanpilot_ros import convert, qos
from scanpilot_ros.frames import Frames
from scanpilot_ros.parameters import Mount, PolicyNodeParameters

# How long the first scans wait for TF to say where the lidar sits.
_MOUNT_PATIENCE = 2.0


class Lidars:
    """Feeds a navigator with the scans of all lidars.

    Args:
        node: that subscribes.
        navigator: made with as many lidars as there are ``scan_topics``.
        frames: look-ups of mounts.
        settings: topics and stated mounts.
        robot: the robot file, where one was given.
        base_frame: the robot's frame; empty while it is not known.
        before: is called with topic, message and time of each that arrives.
        after: is called with the time once a scan was taken that may be acted on.

    Attributes:
        subscriptions: on ``scan_topics``.
    """

    def __init__(
        self,
        node: Node,
        navigator: Navigator,
        frames: Frames,
        settings: PolicyNodeParameters,
        robot: RobotSpec | None,
        *,
        base_frame: Callable[[], str],
        before: Callable[[str, Any, float], None],
        after: Callable[[float], None],
    ) -> None:
        stated = settings.mounts
        if robot is not None:
            stated = tuple(mount or (robot.lidar.mount, settings.lidar_flipped) for mount in stated)
        self._before, self._after = before, after
        self._lidars = [
            _Lidar(node, navigator, frames if settings.lidar_from_tf else None, base_frame, i, mounts)
            for i, mounts in enumerate(zip(settings.mounts, stated, strict=True))
        ]
        self.subscriptions: list[Any] = [
            node.create_subscription(LaserScanMessage, topic, self._listener(topic, lidar), qos.SENSOR)
            for topic, lidar in zip(settings.scan_topics, self._lidars, strict=True)
        ]

    def _listener(self, topic: str, lidar: _Lidar) -> Callable[[LaserScanMessage], None]:
        def listen(message: LaserScanMessage) -> None:
            now = time.monotonic()
            self._before(topic, message, now)
            if lidar.receive(message, now):
                self._after(now)

        return listen

    def values(self) -> dict[str, str]:
        """What was seen of each lidar, for status messages."""
        return {f"{lidar.topic} input": lidar.words() for lidar in self._lidars}


class _Lidar:
    """One of them.

    Args:
        node: that subscribes.
        navigator: is told of scans and mount.
        frames: look-ups of the mount; ``None``: it is not to be looked for in TF.
        base_frame: the robot's frame; empty while it is not known.
        index: its number in the navigator.
        mounts: the mount that a parameter states, and the one to take where TF says nothing.
    """

    def __init__(
        self,
        node: Node,
        navigator: Navigator,
        frames: Frames | None,
        base_frame: Callable[[], str],
        index: int,
        mounts: tuple[Mount | None, Mount | None],
    ) -> None:
        self._node, self._navigator, self._index = node, navigator, index
        self._base_frame = base_frame
        self._stated, self._fallback = mounts
        self._frames = frames if frames is not None and frames.has_tf and self._stated is None else None
        self._audit = ScanAudit()
        self._known = ""
        self._first: float | None = None
        self._where = ""
        self.topic = navigator.scan_names[index]
        if self._fallback is not None:
            self._mount(*self._fallback)

    def receive(self, message: LaserScanMessage, now: float) -> bool:
        """Take a scan, or tell the navigator why not; returns whether it was taken."""
        frame = convert.frame_id(message.header.frame_id)
        try:
            scan = convert.scan_from(message)
            if self._known != frame:
                self._find_mount(frame, now)
        except InvalidInput as error:
            self._audit.refuse(str(error))
            self._navigator.reject_scan(str(error), now, self._index)
            return False
        fault = self._navigator.set_scan(scan, now, self._index)
        if fault is not None:
            self._audit.refuse(fault)
            return False
        self._audit.add(scan)
        odometry = self._navigator.odometry
        if odometry is not None:
            moved = moves_much(np.array([odometry.twist]), scan.time_increment * (scan.ranges.size - 1))
            self._audit.compensated += int(moved[0])
        return True

    def words(self) -> str:
        """Where it sits and what was odd about its scans."""
        return "; ".join(part for part in (self._audit.words(), self._where) if part)

    def _find_mount(self, frame: str, now: float) -> None:
        """Have the navigator know where the lidar with this frame sits.

        Raises:
            InvalidInput: it cannot be said (yet).
        """
        self._first = now if self._first is None else self._first
        if self._frames is None:
            self._known = frame
            return
        base = self._base_frame()
        if not base:
            raise InvalidInput("its mount is not known before odometry names the robot's frame")
        try:
            mount, flipped = self._frames.mount(base, frame)
        except InvalidInput:
            if self._frames.known() or now - self._first < _MOUNT_PATIENCE:
                raise
            self._node.get_logger().warning(
                f"nobody publishes TF: taking the mount of the lidar {frame!r} from the robot's description",
                throttle_duration_sec=30.0,
            )
            return
        self._mount(mount, flipped)
        self._node.get_logger().info(f"lidar {frame!r} {self._where}")
        self._known = frame

    def _mount(self, mount: Any, flipped: bool) -> None:
        self._navigator.set_mount(mount, flipped, self._index)
        where = f"x {mount.x:.3f} m, y {mount.y:.3f} m, yaw {mount.yaw:.3f} rad"
        self._where = f"sits at {where}{', upside down' if flipped else ''}"
