"""Notices a scan that no longer changes while odometry says the robot moves: a driver that hangs."""

from __future__ import annotations

import math

from scanpilot.types import LaserScan, Twist2D

# No real lidar measures the same twice; a simulated one may, as long as it stands.
_SAME_SCANS = 3
_WAY = 0.3
_TURN = 0.5
# Odometry that comes more seldom than this says nothing about the time between.
_LONGEST_STEP = 0.5


class FrozenScan:
    """Follows one lidar and the odometry."""

    def __init__(self) -> None:
        self._last = b""
        self._same = 0
        self._way = self._turn = 0.0
        self._moved_at: float | None = None

    def moved(self, twist: Twist2D, now: float) -> None:
        """Odometry has news."""
        step = 0.0 if self._moved_at is None else min(max(0.0, now - self._moved_at), _LONGEST_STEP)
        self._moved_at = now
        self._way += math.hypot(twist.vx, twist.vy) * step
        self._turn += abs(twist.wz) * step

    def problem(self, scan: LaserScan) -> str | None:
        """Why this newest scan must not be acted on, or ``None``."""
        ranges = scan.ranges.tobytes()
        # A scan of a single value may be that of a robot alone in a wide field.
        if ranges != self._last or bool((scan.ranges == scan.ranges[0]).all()):
            self._last, self._same, self._way, self._turn = ranges, 0, 0.0, 0.0
            return None
        self._same += 1
        if self._same < _SAME_SCANS or (self._way < _WAY and self._turn < _TURN):
            return None
        return (
            f"has not changed for {self._same} scans while odometry moved {self._way:.1f} m and turned "
            f"{self._turn:.1f} rad: the lidar's driver hangs, or the wheels slip"
        )
