"""What the policy node says of itself: rates of its inputs, and the message of `~/status` and `/diagnostics`.

Every text that a user may search for in docs/robot.md is made here or in `scanpilot.navigator`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from scanpilot.navigator import Command, State

LEVELS = {
    State.DRIVING: DiagnosticStatus.OK,
    State.TURNING: DiagnosticStatus.OK,
    State.REACHED: DiagnosticStatus.OK,
    State.NO_GOAL: DiagnosticStatus.OK,
    State.DISABLED: DiagnosticStatus.WARN,
    State.RECOVERING: DiagnosticStatus.WARN,
    State.GAVE_UP: DiagnosticStatus.ERROR,
    State.NO_POLICY: DiagnosticStatus.ERROR,
    State.BAD_INPUT: DiagnosticStatus.ERROR,
    State.FAILED: DiagnosticStatus.ERROR,
}


class Stream:
    """How often the messages of a topic come, and how old their stamps are on the node's clock.

    Attributes:
        stamp_age: seconds from the newest stamp to its arrival; negative from a clock ahead of ours.
    """

    _WINDOW = 2.0

    def __init__(self) -> None:
        self._arrivals: deque[float] = deque(maxlen=200)
        self.stamp_age = math.nan

    def arrived(self, now: float, stamp: float, clock: float) -> None:
        """A message came at ``now`` (monotonic), stamped ``stamp``; the node's clock says ``clock``."""
        self._arrivals.append(now)
        self.stamp_age = clock - stamp

    def rate(self, now: float) -> float:
        """Messages per second over the last two seconds; 0 when fewer than two came."""
        # A copy, made at once: watchdogs report too, from threads of their own, while messages arrive.
        recent = [t for t in tuple(self._arrivals) if now - t <= self._WINDOW]
        return 0.0 if len(recent) < 2 else (len(recent) - 1) / (recent[-1] - recent[0] or math.inf)


def status_message(name: str, command: Command, warning: str, values: Mapping[str, Any]) -> DiagnosticStatus:
    """State and reason of a node, with everything else it knows as keys and values.

    Args:
        name: of the node.
        command: what it sends now, and why.
        warning: something that a user should mend although the state does not show it.
        values: measured and counted.
    """
    level, reason = LEVELS[command.state], command.reason
    if warning:
        level, reason = max(level, DiagnosticStatus.WARN), f"{reason}; {warning}"
    message = DiagnosticStatus(level=level, name=f"{name}: navigation", message=reason)
    message.hardware_id = str(values.get("robot", ""))
    stated = {"state": command.state.value, "reason": reason, **values}
    message.values = [KeyValue(key=key, value=str(value)) for key, value in stated.items()]
    return message


def stream_values(streams: Mapping[str, Stream], ages: Mapping[str, float]) -> dict[str, str]:
    """Rate, age and stamp age of each input."""
    now = time.monotonic()
    values = {}
    for name, stream in streams.items():
        values[f"{name} rate (Hz)"] = f"{stream.rate(now):.1f}"
        values[f"{name} age (s)"] = f"{ages.get(name, math.inf):.3f}"
        values[f"{name} stamp age (s)"] = f"{stream.stamp_age:.3f}"
    return values
