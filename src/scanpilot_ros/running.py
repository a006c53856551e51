"""Running one node as a process: start, signals, a clean end.

The executor spins in a thread of its own while the main thread waits for signals, so that a node is
told to halt within milliseconds of SIGINT or SIGTERM even when the executor is busy. rclpy's own
signal handlers would shut the context down first, and a node could not send its last zero any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Protocol

import rclpy
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions

from scanpilot.configuration import ConfigurationError
from scanpilot.types import InvalidInput

# Names, in the environment of a process, the parent that it must not outlive.
STOP_WITH_PARENT = "SCANPILOT_STOP_WITH_PARENT"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Halting(Protocol):
    """A node that has something to put right before its process ends."""

    def halt(self) -> None:
        """Leave the robot standing still; called from another thread than the executor's."""


def run(make: Callable[[], Node], args: list[str] | None = None) -> int:
    """Run a node until SIGINT or SIGTERM; returns the process's exit code.

    A node whose making raises `InvalidInput`, `ConfigurationError` or `OSError` ends the process
    with the reason on standard error and exit code 1.
    """
    # Handlers and not a blocked mask: numerical libraries have started threads that block nothing, and
    # a signal that lands there would raise KeyboardInterrupt here. A second one, which launch sends as a
    # rule, must not cut the end short either.
    told = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: told.set())
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make()
    except (InvalidInput, ConfigurationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        rclpy.shutdown()
        return 1
    return _spin(node, told)


def _spin(node: Node, told: threading.Event) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    failure: list[BaseException] = []
    done = threading.Event()

    def spin() -> None:
        try:
            executor.spin()
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()
            # The main thread must not sleep on while nobody drives.
            told.set()

    thread = threading.Thread(target=spin, name="executor", daemon=True)
    thread.start()
    while not done.is_set() and not told.wait(0.05) and not _orphaned():
        pass
    halt = getattr(node, "halt", None)
    if halt is not None:
        halt()
    # Python gives signals their default meaning back while it ends: another one would look like a crash.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # What is raised after this is rclpy's executor being taken apart while it waits: no failure of ours.
    failed = list(failure)
    executor.shutdown(timeout_sec=1.0)
    thread.join(2.0)
    if failed:
        node.get_logger().fatal(f"{type(failed[0]).__name__}: {failed[0]}")
    if thread.is_alive():
        # A callback hangs: the robot has its zero, and there is nothing left worth waiting for.
        os._exit(1)
    node.destroy_node()
    rclpy.shutdown()
    return 1 if failed else 0


def _orphaned() -> bool:
    """Whether the process that this one must not outlive is gone; killed hard, it could not say so."""
    parent = os.environ.get(STOP_WITH_PARENT)
    return parent is not None and os.getppid() != int(parent)


def flush(publisher: Publisher, seconds: float = 0.1) -> None:
    """Wait until what was published has arrived at every reliable subscriber, or for a while."""
    publisher.wait_for_all_acked(Duration(seconds=seconds))
