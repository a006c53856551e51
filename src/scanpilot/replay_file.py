"""Replay files: transitions that robots lived through, on disk. How they are learned from: `offline`.

One safetensors file: tensors, and a JSON text in its header that says what they are (robot,
observation, task, the bags they came from, a checksum of every tensor). Nothing in it is executed.
Each policy scan is kept once; transitions name the rows of ``frames`` that they saw.

====================  =================  =======================================================
``frames``            (F, n) float16     scans as the policy sees them, metres
``stack``             (M, k + 1) int32   rows of ``frames``: the state's k, and the successor's newest
``goal``, ``speed``   (M, 2, 3) float32  of state and successor; so for what else a triplet holds
``action``            (M, 3) float32     executed
``reward``            (M,) float32
``terminated``, ...   (M,) bool          and ``truncated``, ``reached``, ``collided``
``stamp``             (M,) float64       of the state, seconds on the clock of the bag's headers
``bag``               (M,) int32         which of the header's ``bags``
``segment``           (M,) int32         unbroken stretch of that bag
``episode``           (M,) int32         transitions of an episode follow one another
``action_source``     (M,) uint8         `ActionSource`; and ``goal_source``, ``contact_source``
====================  =================  =======================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from scanpilot import configuration
from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec
from scanpilot.task import TaskConfig
from scanpilot.transitions import ActionSource, ContactSource, Episode, GoalSource
from scanpilot.types import StepResult, Triplet

SCHEMA_VERSION = 1
_KEY = "scanpilot_replay"
_DTYPES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
_ROWS = 4096


class ReplayFileError(ValueError):
    """A replay file that must not be used; names the file and the reason."""


class _Spool:
    """One tensor on its way to disk: memory does not grow with the bag."""

    def __init__(self, directory: Path) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (lives as long as the writer)
        self.hash = hashlib.sha256()
        self.rows = 0
        self.kind: tuple[str, tuple[int, ...]] | None = None

    def write(self, rows: NDArray[Any]) -> None:
        kind = (str(rows.dtype), rows.shape[1:])
        assert self.kind in (None, kind)
        self.kind = kind
        data = np.ascontiguousarray(rows).tobytes()
        self.file.write(data)
        self.hash.update(data)
        self.rows += len(rows)

    def description(self, offset: int) -> dict[str, Any]:
        assert self.kind is not None
        dtype, shape = self.kind
        size = self.file.tell()
        return {
            "dtype": _DTYPES[dtype],
            "shape": [self.rows, *shape],
            "data_offsets": [offset, offset + size],
        }


class ReplayWriter:
    """Writes a replay file, whole or not at all; a context that is left by an error writes nothing.

    Args:
        path: of the file; replaced if it is there.
        robot, observation, task: that the transitions were made for.
        provenance: JSON values for the header: how the transitions were made.
    """

    def __init__(
        self,
        path: Path,
        robot: RobotSpec,
        observation: ObservationSpec,
        task: TaskConfig,
        provenance: dict[str, Any],
    ) -> None:
        self._path = path
        self._header = {
            "schema_version": SCHEMA_VERSION,
            "robot": configuration.to_dict(robot),
            "observation": configuration.to_dict(observation),
            "task": configuration.to_dict(task),
            "sources": {
                "action_source": {s.name.lower(): s.value for s in ActionSource},
                "goal_source": {s.name.lower(): s.value for s in GoalSource},
                "contact_source": {s.name.lower(): s.value for s in ContactSource},
            },
            **provenance,
            "bags": [],
        }
        self._spools: dict[str, _Spool] = {}
        self._rows: dict[int, int] = {}
        self._bag, self._episodes = -1, 0

    @property
    def transitions(self) -> int:
        """Written so far."""
        return self._spools["reward"].rows if "reward" in self._spools else 0

    def __enter__(self) -> ReplayWriter:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._assemble()
        finally:
            for spool in self._spools.values():
                spool.file.close()

    def note_bag(self, provenance: dict[str, Any]) -> None:
        """JSON values about the next bag, in the order of their indices, for the header's ``bags``."""
        self._header["bags"].append(provenance)

    def add(self, episode: Episode, bag: int) -> None:
        """Append an episode from the bag with this index in the provenance."""
        if bag != self._bag:
            self._bag = bag
            self._rows.clear()
        steps, result, length = episode.steps, episode.result, len(episode)
        for field in dataclasses.fields(Triplet):
            before, after = getattr(episode.states, field.name), getattr(result.triplets, field.name)
            if field.name != "scan" and before is not None:
                self._write(field.name, np.stack((before, after), axis=1))
        self._write("stack", self._stack(episode))
        self._write("action", result.actions)
        self._write("reward", result.rewards)
        for name in ("terminated", "truncated", "reached", "collided"):
            self._write(name, getattr(result, name))
        self._write("stamp", np.array([s.before.stamp for s in steps]))
        for name, values in (
            ("bag", [bag] * length),
            ("segment", [s.segment for s in steps]),
            ("episode", [self._episodes] * length),
        ):
            self._write(name, np.array(values, dtype=np.int32))
        for name, sources in (
            ("action_source", [s.action_source for s in steps]),
            ("goal_source", [episode.goal_source] * length),
            ("contact_source", [s.contact for s in steps]),
        ):
            self._write(name, np.array(sources, dtype=np.uint8))
        self._episodes += 1

    def _write(self, name: str, rows: NDArray[Any]) -> None:
        if name not in self._spools:
            self._spools[name] = _Spool(self._path.parent)
        self._spools[name].write(rows)

    def _stack(self, episode: Episode) -> NDArray[np.int32]:
        """(L, k + 1) rows of ``frames``, written where they are new."""
        states = [episode.steps[0].before, *(step.after for step in episode.steps)]
        depth = len(states[0].frames)
        oldest = states[0].number - depth + 1
        # Episodes of one stretch overlap, but never reach back further than a time limit.
        for number in [n for n in self._rows if n < oldest - 2 * depth - 10_000]:
            del self._rows[number]
        first = states[0].first
        for age in range(depth - 1, 0, -1):
            self._frame(max(first, states[0].number - age), states[0].frames[-1 - age])
        for state in states:
            self._frame(state.number, state.frames[-1])
        wanted = [[s.number + offset for offset in range(1 - depth, 2)] for s in states[:-1]]
        return np.array([[self._rows[max(first, n)] for n in row] for row in wanted], dtype=np.int32)

    def _frame(self, number: int, frame: NDArray[np.float32]) -> None:
        if number not in self._rows:
            spool = self._spools.get("frames")
            self._rows[number] = spool.rows if spool else 0
            self._write("frames", frame[None].astype(np.float16))

    def _assemble(self) -> None:
        offset, tensors = 0, {}
        for name, spool in self._spools.items():
            tensors[name] = spool.description(offset)
            offset = tensors[name]["data_offsets"][1]
        header = {
            **self._header,
            "transitions": self.transitions,
            "episodes": self._episodes,
            "sha256": {name: spool.hash.hexdigest() for name, spool in self._spools.items()},
        }
        # The format is a length, this text and the tensors one after the other; the library's own
        # writer wants all of them in memory.
        text = json.dumps({"__metadata__": {_KEY: json.dumps(header)}, **tensors}).encode()
        text += b" " * (-len(text) % 8)
        staging = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with open(staging, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for spool in self._spools.values():
                    spool.file.seek(0)
                    shutil.copyfileobj(spool.file, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staging, self._path)
        finally:
            staging.unlink(missing_ok=True)


class Transitions(NamedTuple):
    """Some of a file's transitions, M of them: as `ReplayBuffer.add` takes them."""

    before: Triplet
    result: StepResult
    robots: NDArray[np.int64]


class ReplayFile:
    """A replay file that was found to be whole.

    Raises:
        ReplayFileError: names the file and the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Its stubs have no types.
            self._file = cast(Any, safe_open(path, framework="numpy"))
            self.header: dict[str, Any] = json.loads((self._file.metadata() or {})[_KEY])
            version = self.header["schema_version"]
        except (OSError, SafetensorError) as error:
            raise ReplayFileError(f"{path}: cannot be read as a replay file: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayFileError(f"{path}: is not a replay file (its header lacks {_KEY})") from error
        if version != SCHEMA_VERSION:
            raise ReplayFileError(f"{path}: schema version {version!r}, this release reads {SCHEMA_VERSION}")
        try:
            self.robot = configuration.from_dict(RobotSpec, self.header["robot"], f"{path} (robot)")
            self.observation = configuration.from_dict(
                ObservationSpec, self.header["observation"], f"{path} (observation)"
            )
            self._check()
        except (configuration.ConfigurationError, KeyError, TypeError, IndexError) as error:
            raise ReplayFileError(f"{path}: its header is not usable: {error!r}") from error

    def __len__(self) -> int:
        """Transitions held."""
        return int(self.header["transitions"])

    def array(self, name: str) -> NDArray[Any]:
        """One of the tensors, whole."""
        tensor: NDArray[Any] = self._file.get_tensor(name)
        return tensor

    def _check(self) -> None:
        """Checksums, lengths, and that every row named is there."""
        count, sums = len(self), self.header["sha256"]
        if set(sums) != set(self._file.keys()):
            raise ReplayFileError(f"{self.path}: its tensors are not those that its header lists")
        for name in sums:
            tensor = self._file.get_tensor(name)
            if hashlib.sha256(tensor.tobytes()).hexdigest() != sums[name]:
                raise ReplayFileError(f"{self.path}: {name} does not match its checksum: damaged")
            if name != "frames" and len(tensor) != count:
                raise ReplayFileError(f"{self.path}: {name} has {len(tensor)} rows, expected {count}")
        if count:
            stack, frames = self.array("stack"), self._file.get_slice("frames").get_shape()
            k, n = self.observation.scan_shape
            if stack.shape[1] != k + 1 or frames[1] != n or not 0 <= stack.min() <= stack.max() < frames[0]:
                raise ReplayFileError(f"{self.path}: scans do not fit its observation")

    def batches(self) -> Iterator[Transitions]:
        """All transitions in order, some thousand at a time; the robots' ids are the episodes' numbers."""
        if not len(self):
            return
        frames = self.array("frames")
        names = [f.name for f in dataclasses.fields(Triplet) if f.name in self.header["sha256"]]
        for begin in range(0, len(self), _ROWS):
            rows = slice(begin, min(begin + _ROWS, len(self)))

            def part(name: str, rows: slice = rows) -> NDArray[Any]:
                some: NDArray[Any] = self._file.get_slice(name)[rows]
                return some

            scans = frames[part("stack")].astype(np.float32)
            pairs = {name: part(name) for name in names}
            before = Triplet(scan=scans[:, :-1], **{name: pair[:, 0] for name, pair in pairs.items()})
            after = Triplet(scan=scans[:, 1:], **{name: pair[:, 1] for name, pair in pairs.items()})
            result = StepResult(
                after,
                part("action"),
                part("reward"),
                part("terminated"),
                part("truncated"),
                part("reached"),
                part("collided"),
            )
            yield Transitions(before, result, part("episode").astype(np.int64))
