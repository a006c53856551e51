"""Loading policies while the robot drives: a watched path and announced ones, in a thread of its own.

Knows nothing of ROS: it is handed paths and hands out policies that were validated and warmed up.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scanpilot import checkpoint
from scanpilot.checkpoint import Backend, CheckpointError
from scanpilot.policy import Policy
from scanpilot.types import InvalidInput

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
# How long the loader rests after each load, in times that it took: ticks go first. A loader that
# never rests uses up its process's share of a busy machine, and the ticks have none left.
_REST = 2.0
_REST_SECONDS = 0.25

Answer = Callable[[bool, str], None]
# What tells two versions of a directory apart without reading them.
_Trace = tuple[object, ...]


@dataclass(frozen=True)
class Loaded:
    """A policy fit to drive with, and where it came from."""

    policy: Policy
    path: str


@dataclass(frozen=True)
class Record:
    """What the loader has done so far."""

    loaded: int = 0
    refused: int = 0
    skipped: int = 0
    last_refusal: str = ""
    path: str = ""


class PolicyLoader:
    """Brings policies from disk to the robot without disturbing it.

    Args:
        backend: what runs them.
        accept: called with each good policy, from the loader's thread; may raise `InvalidInput`
            to refuse it.
        refused: called with the reason for each bad one, from the loader's thread.
        quiet: called before each load, from the loader's thread; waits for a moment when it
            disturbs least.
    """

    def __init__(
        self,
        backend: Backend,
        accept: Callable[[Loaded], None],
        refused: Callable[[str], None],
        quiet: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._accept = accept
        self._refused = refused
        self._quiet = quiet
        self._queue: queue.SimpleQueue[tuple[str, Answer | None]] = queue.SimpleQueue()
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._run, name="policy loader", daemon=True)
        self._watched = ""
        self._seen: _Trace = ()
        self.record = Record()

    def start(self, path: str) -> None:
        """Load the policy at ``path`` now, then go on watching it; empty watches nothing."""
        self._watched = path
        self._look()
        self._thread.start()

    def watch(self, path: str, answer: Answer) -> None:
        """Watch this path from now on; load what is there even if it was loaded before."""
        self._seen, self._watched = _trace(path), path
        self.announce(path, answer)

    def announce(self, path: str, answer: Answer | None = None) -> None:
        """Load the policy at ``path`` after those announced before it."""
        self._queue.put((path, answer))

    def stop(self) -> None:
        """End the thread, after the load in progress."""
        self._quit.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._quit.is_set():
            try:
                path, answer = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._changed():
                    self._quiet()
                    self._look()
                continue
            superseded = not self._queue.empty() and answer is None and not Path(path).exists()
            if superseded:
                # A run keeps its newest few policies; this one made room for those still queued.
                self._note(skipped=self.record.skipped + 1)
                continue
            self._quiet()
            begun = time.monotonic()
            ok, message = self._load(path)
            if answer is not None:
                answer(ok, message)
            self._quit.wait(min(_REST * (time.monotonic() - begun), _REST_SECONDS))

    def _look(self) -> None:
        """Load the watched policy if it is another than the one last seen there."""
        if not self._changed():
            return
        path = self._watched
        # Before loading: what is written meanwhile is another trace, and loaded next time.
        self._seen = _trace(path)
        # A directory replaced in place is gone for a moment: no reason to complain while another drives.
        if not (self._seen[-1] is None and self.record.loaded):
            self._load(path)

    def _changed(self) -> bool:
        return bool(self._watched) and _trace(self._watched) != self._seen

    def _load(self, path: str) -> tuple[bool, str]:
        try:
            policy = checkpoint.load_policy(path, self._backend)
            self._accept(Loaded(policy, path))
        except (CheckpointError, InvalidInput) as error:
            return False, self._refuse(path, str(error))
        except Exception as error:
            logger.exception("loading %s failed", path)
            return False, self._refuse(path, f"{type(error).__name__}: {error}")
        self._note(loaded=self.record.loaded + 1, path=path)
        return True, f"loaded {policy.name} {policy.identity}"

    def _refuse(self, path: str, reason: str) -> str:
        message = reason if path in reason else f"{path}: {reason}"
        self._note(refused=self.record.refused + 1, last_refusal=message)
        self._refused(message)
        return message

    def _note(self, **changes: Any) -> None:
        # A new object each time: other threads read one consistent record.
        self.record = replace(self.record, **changes)


def _trace(path: str) -> _Trace:
    """Where a policy directory really lies, and inode, size and time of each file in it."""
    directory = Path(os.path.realpath(path))
    if directory.suffix == ".onnx" and directory.is_file():
        s = directory.stat()
        return (str(directory), s.st_ino, s.st_size, s.st_mtime_ns)
    if not (directory / checkpoint.MANIFEST).exists() and (directory / "policy").exists():
        directory = Path(os.path.realpath(directory / "policy"))
    try:
        with os.scandir(directory) as entries:
            files = sorted((e.name, (s := e.stat()).st_ino, s.st_size, s.st_mtime_ns) for e in entries)
    except OSError:
        return (str(directory), None)
    return (str(directory), *files)
