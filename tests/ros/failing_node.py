"""The policy node, which fails in a stated way on SIGUSR1: ``python failing_node.py WAY --ros-args ...``.

Prints the monotonic time at which it began to fail. Nothing but the failure itself is ours: the node,
its threads and its process are those that users run.
"""

import signal
import sys
import threading
import time

from scanpilot.navigator import Command, Navigator
from scanpilot_ros import policy_node
from scanpilot_ros.policy_node import PolicyNode

told = threading.Event()
way = sys.argv.pop(1)


def begin() -> None:
    print(f"failing {time.monotonic()}", flush=True)


def fails(self: Navigator, now: float) -> Command:
    """The tick that hangs, hangs with the navigator's lock, or raises, for as long as it was told to."""
    if not told.is_set():
        return tick(self, now)
    begin()
    if way == "raise":
        told.clear()
        raise RuntimeError("out of luck")
    if way == "hang":
        time.sleep(2.0)
    with self._lock:
        time.sleep(2.0)
    return tick(self, now)


def breaks(self: PolicyNode, message: object) -> None:
    """A callback that raises where nobody catches it: the executor ends."""
    if told.is_set():
        begin()
        raise RuntimeError("out of luck")
    on_odometry(self, message)


tick, on_odometry = Navigator.tick, PolicyNode._on_odometry
if way == "break":
    PolicyNode._on_odometry = breaks
else:
    Navigator.tick = fails
# Not before the node's own handlers: those are for other signals.
signal.signal(signal.SIGUSR1, lambda *_: told.set())
sys.exit(policy_node.main())
