"""What was odd about the inputs, counted and said in words; nothing here changes what is driven by.

`messages` mends headers and `observation` decides what readings mean; here is kept how often that was
needed, for status messages, bag reports and the user who wonders what the robot's drivers send.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from scanpilot.observation import ERROR_CODE_LIMIT
from scanpilot.types import LaserScan, Odometry

_FULL_TURN = 2.0 * math.pi
# More different reasons than this would be one reason with numbers in it.
_REASONS_KEPT = 8

# Each kind of reading that is not a plain range between the limits of its header.
_KINDS = (
    "inf",
    "nan",
    "-inf, too close",
    "zero or code, no return",
    "at or beyond range_max, no return",
    "below range_min, taken as obstacle",
)


class ScanAudit:
    """Counts over the scans of one lidar.

    Attributes:
        scans: accepted so far.
        refused: scans that were not, by reason.
        repairs: scans by what had to be mended of their header.
        compensated: scans during which the robot moved and that were seen as from their end.
    """

    def __init__(self) -> None:
        self.scans = 0
        self.refused: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.compensated = 0
        self._readings = 0
        self._kinds = np.zeros(len(_KINDS), dtype=np.int64)
        self._fewest, self._most = 0, 0
        self._clockwise = False

    def add(self, scan: LaserScan) -> None:
        """Count a scan that was accepted."""
        beams = scan.ranges.size
        self.scans += 1
        self._readings += beams
        self._fewest = beams if self.scans == 1 else min(self._fewest, beams)
        self._most = max(self._most, beams)
        self._clockwise = scan.angle_increment < 0.0
        self.repairs.update(scan.repairs)
        if beams > 1 and abs(abs(scan.angle_increment) * (beams - 1) - _FULL_TURN) < 1e-3:
            self.repairs["last beam repeats the first direction"] += 1
        self._kinds += _count(scan)

    def refuse(self, reason: str) -> None:
        """Count a scan that was refused."""
        if reason in self.refused or len(self.refused) < _REASONS_KEPT:
            self.refused[reason] += 1
        else:
            self.refused["other reasons"] += 1

    def shares(self) -> dict[str, float]:
        """Which share of all readings was of each odd kind, 0 to 1; kinds that did not occur are left out."""
        total = max(1, self._readings)
        return {k: int(n) / total for k, n in zip(_KINDS, self._kinds, strict=True) if n}

    def words(self) -> str:
        """All of it in one line."""
        if not self.scans and not self.refused:
            return "no scan yet"
        beams = f"{self._most}" if self._fewest == self._most else f"{self._fewest} to {self._most}"
        said = [f"{self.scans} scans of {beams} beams"]
        if self._clockwise:
            said.append("clockwise")
        said += [f"{kind}: {100.0 * share:.1f} %" for kind, share in self.shares().items()]
        said += [f"{what}: {n} scans" for what, n in self.repairs.items()]
        if self.compensated:
            said.append(f"compensated for motion: {self.compensated} scans")
        if self.refused:
            worst, n = self.refused.most_common(1)[0]
            said.append(f"refused: {self.refused.total()} scans, {n} as {worst}")
        return "; ".join(said)


def _count(scan: LaserScan) -> NDArray[np.int64]:
    r = scan.ranges
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(r)
        code = finite & (r <= ERROR_CODE_LIMIT)
        counts = (
            np.count_nonzero(r == math.inf),
            np.count_nonzero(np.isnan(r)),
            np.count_nonzero(r == -math.inf),
            np.count_nonzero(code),
            np.count_nonzero(finite & (r >= np.float32(scan.range_max))),
            np.count_nonzero(finite & ~code & (r < np.float32(scan.range_min))),
        )
    return np.array(counts, dtype=np.int64)


class OdometryAudit:
    """Notices velocities that are stated in the odometry frame instead of the robot's own.

    REP-105 wants them in the child frame. Where the robot drives is seen from its poses: over a stretch
    in which its heading is not that of the odometry frame, only one of the two readings fits.
    """

    # Steps that tell, before anything is said; and by which factor one reading must fit better.
    _ENOUGH = 20
    _BETTER = 4.0
    _SLOWEST = 0.05
    _LONGEST_STEP = 0.5

    def __init__(self) -> None:
        self._last: Odometry | None = None
        self._steps = 0
        self._own_error = self._parent_error = 0.0

    def add(self, odometry: Odometry) -> None:
        """Compare a step of the pose with the velocity that goes with it."""
        last, self._last = self._last, odometry
        if last is None:
            return
        dt = odometry.stamp - last.stamp
        speed = math.hypot(odometry.twist.vx, odometry.twist.vy)
        if not 0.0 < dt < self._LONGEST_STEP or speed < self._SLOWEST:
            return
        dx, dy = odometry.pose.x - last.pose.x, odometry.pose.y - last.pose.y
        # As far as the wheels say, or the step is a jump (a reset) or a stop.
        if not 0.3 < math.hypot(dx, dy) / (speed * dt) < 3.0:
            return
        driven = math.atan2(dy, dx)
        stated = math.atan2(odometry.twist.vy, odometry.twist.vx)
        middle = last.pose.yaw + 0.5 * math.remainder(odometry.pose.yaw - last.pose.yaw, _FULL_TURN)
        if abs(math.remainder(middle, _FULL_TURN)) < 0.3:
            # Heading along the odometry frame's x axis both readings agree.
            return
        self._steps += 1
        self._own_error += abs(math.remainder(driven - stated - middle, _FULL_TURN))
        self._parent_error += abs(math.remainder(driven - stated, _FULL_TURN))

    @property
    def in_parent_frame(self) -> bool:
        """Whether the velocities look as if stated in the odometry frame."""
        return self._steps >= self._ENOUGH and self._own_error > self._BETTER * self._parent_error
