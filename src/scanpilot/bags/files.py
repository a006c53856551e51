"""A bag as one stream of messages in the order of recording: rosbag2 or ROS 1, whole or damaged.

Opens each file of a bag by itself, so that one that is damaged or missing takes nothing else with it;
what could not be read is named in `Bag.problems`. Knows how messages are stored and decoded, not what
they mean (see `stream`).
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rosbags.interfaces import Connection, MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag1 import Reader as Ros1Reader
from rosbags.rosbag2.storage_mcap import McapReader
from rosbags.rosbag2.storage_sqlite3 import Sqlite3Reader
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from scanpilot.bags import BagError
from scanpilot.bags.salvage import RawMessage, decompress_file, salvage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

logger = logging.getLogger(__name__)

_READERS: dict[str, Callable[[Path], Any]] = {
    ".db3": Sqlite3Reader,
    ".mcap": McapReader,
    ".bag": Ros1Reader,
}
_METADATA = "metadata.yaml"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Salvaged messages are put in order over this many nanoseconds.
_DISORDER = 2_000_000_000


@dataclass
class Topic:
    """What a bag holds of one topic.

    Attributes:
        name, msgtype: the type in ROS 2's spelling.
        serialisation: ``cdr`` or ``ros1``; nothing else can be decoded.
        definition: of the type, where the bag has it.
        count: messages found.
        first, last: nanoseconds, when the first and the last one were recorded.
        longest: nanoseconds between two that follow one another.
    """

    name: str
    msgtype: str
    serialisation: str = "cdr"
    definition: MessageDefinition | None = None
    count: int = 0
    first: int = 0
    last: int = 0
    longest: int = 0

    def saw(self, time: int) -> None:
        """Count a message."""
        if self.count:
            self.longest = max(self.longest, time - self.last)
        self.first = time if not self.count else min(self.first, time)
        self.last = max(self.last, time)
        self.count += 1


@dataclass
class _File:
    """One storage file; ``damaged`` says how it is read."""

    name: str
    path: Path
    damaged: bool = False
    problems: list[str] = field(default_factory=list)

    def messages(self, topics: Collection[str] | None) -> Iterator[RawMessage]:
        """Messages of these topics (``None``: all), each once."""
        if self.damaged:
            wanted = (m for m in salvage(self.path, self._report) if topics is None or m.topic in topics)
            yield from _in_order(wanted)
            return
        with self.reader() as reader:
            chosen = [c for c in reader.connections if topics is None or c.topic in topics]
            if chosen:
                for connection, time, data in reader.messages(chosen):
                    yield RawMessage(connection.topic, connection.msgtype, time, data)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Any]:
        """The file, opened by the rosbags library."""
        reader = _READERS[self.path.suffix](self.path)
        reader.open()
        try:
            yield reader
        finally:
            reader.close()

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


class Bag:
    """A bag, opened and looked through once; a context, for it may hold temporary files.

    Args:
        path: a rosbag2 directory, a ``.db3``, ``.mcap`` or ``.bag`` file (also with ``.zstd`` behind),
            or a directory with ROS 1 bags.

    Attributes:
        path: of the bag.
        format: for people, such as ``rosbag2 (sqlite3)``.
        topics: by name.
        problems: what is missing or damaged, in words.

    Raises:
        BagError: there is no bag, or of a kind that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.problems: list[str] = []
        self.topics: dict[str, Topic] = {}
        self._stack = contextlib.ExitStack()
        self._registered: set[str] = set()
        try:
            self._metadata = self._read_metadata()
            self._files = [self._unpacked(file) for file in self._find_files()]
            self.is_ros1 = any(file.path.suffix == ".bag" for file in self._files)
            self._check_versions()
            self._store = _store(self.is_ros1)
            self._survey()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def format(self) -> str:
        """For people."""
        if self.is_ros1:
            return "ROS 1 bag"
        kinds = {".db3": "sqlite3", ".mcap": "mcap"}
        storage = ", ".join(sorted({kinds[file.path.suffix] for file in self._files}))
        packed = " zstd" if any(file.name.endswith((".zstd", ".zst")) for file in self._files) else ""
        return f"rosbag2 ({storage}{packed}, {len(self._files)} file{'s' * (len(self._files) != 1)})"

    @property
    def span(self) -> tuple[int, int]:
        """Nanoseconds: when the first and the last message were recorded; (0, 0) without messages."""
        seen = [t for t in self.topics.values() if t.count]
        return (min(t.first for t in seen), max(t.last for t in seen)) if seen else (0, 0)

    def messages(self, topics: Collection[str] | None = None) -> Iterator[RawMessage]:
        """Messages of these topics (``None``: all) in the order of recording.

        Raises:
            BagError: a file became unreadable after it was looked through.
        """
        streams = [file.messages(topics) for file in self._files]
        try:
            for message in heapq.merge(*streams, key=_time):
                yield _unpacked_message(message)
        except (OSError, zstd.ZstdError) as error:
            raise BagError(f"{self.path}: {error}") from error

    def decode(self, message: RawMessage) -> Any:
        """The message's fields.

        Raises:
            BagError: its type is not known, or its bytes are not such a message.
        """
        kind = message.msgtype
        try:
            if kind not in self._store.fielddefs:
                self._register(message.topic, kind)
            decode = self._store.deserialize_ros1 if self.is_ros1 else self._store.deserialize_cdr
            return decode(message.data, kind)
        except BagError:
            raise
        except Exception as error:
            # Damaged bytes make the decoder stumble in any way there is.
            raise BagError(f"{message.topic}: damaged {kind}: {error!r}") from error

    def knows(self, topic: Topic) -> bool:
        """Whether messages of a topic can be decoded."""
        if topic.serialisation not in ("cdr", "ros1"):
            return False
        if topic.msgtype in self._store.fielddefs:
            return True
        try:
            self._register(topic.name, topic.msgtype)
        except BagError:
            return False
        return True

    def _register(self, name: str, kind: str) -> None:
        """Learn a type from the definition in the bag."""
        definition = self.topics[name].definition if name in self.topics else None
        if definition is None or kind in self._registered:
            raise BagError(f"{name}: type {kind} is neither known nor defined in the bag")
        self._registered.add(kind)
        try:
            if definition.format == MessageDefinitionFormat.MSG:
                types = get_types_from_msg(definition.data, kind)
            else:
                types = get_types_from_idl(definition.data)
            own = {k: v for k, v in types.items() if k not in self._store.fielddefs}
            self._store.register(own)
        except Exception as error:
            raise BagError(f"{name}: the definition of {kind} cannot be read: {error!r}") from error

    # Finding files

    def _read_metadata(self) -> dict[str, Any]:
        """What the metadata file says; empty where there is none, which is rebuilt from the files."""
        if not self.path.exists():
            raise BagError(f"{self.path}: no such bag")
        path = self.path / _METADATA
        if not self.path.is_dir() or (any(self.path.glob("*.bag")) and not path.exists()):
            return {}
        if not path.exists():
            self.problems.append(f"{_METADATA} is missing: rebuilt from the files")
            return {}
        try:
            loaded = yaml.safe_load(path.read_text())["rosbag2_bagfile_information"]
            names = loaded["relative_file_paths"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError("relative_file_paths is not a list of names")
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            self.problems.append(f"{_METADATA} is damaged ({reason}): rebuilt from the files")
            return {}
        return dict(loaded)

    def _find_files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        there = sorted((p for p in self.path.iterdir() if _storage_of(p)), key=_natural)
        if not self._metadata:
            listed = there
        else:
            # Old versions prefix the directory's name; and a bag may have been renamed as a whole.
            names = [Path(name).name for name in self._metadata["relative_file_paths"]]
            listed = [self.path / name for name in names if (self.path / name).is_file()]
            missing = [name for name in names if not (self.path / name).is_file()]
            extra = [p for p in there if p.name not in names]
            if missing and not listed:
                self.problems.append(f"{_METADATA} lists {', '.join(missing)}: not there")
                listed, extra = there, []
            elif missing:
                self.problems.append(f"files missing: {', '.join(missing)}")
            if extra:
                others = ", ".join(p.name for p in extra)
                self.problems.append(f"files that {_METADATA} does not list were not read: {others}")
        if not listed:
            raise BagError(f"{self.path}: no .db3, .mcap or .bag file in it")
        return listed

    def _unpacked(self, path: Path) -> _File:
        """The file, decompressed into a temporary one where it is compressed as a whole."""
        if _storage_of(path) is None:
            raise BagError(f"{path}: neither .db3, .mcap nor .bag, nor one of these compressed with zstd")
        if path.suffix in _READERS:
            return _File(path.name, path)
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="scanpilot-bag-")))
        file = _File(path.name, directory / path.stem)
        if not decompress_file(path, file.path):
            file.damaged = True
            file.problems.append(f"{path.name}: cut off or damaged: decompressed as far as it goes")
        return file

    def _check_versions(self) -> None:
        for file in self._files:
            if file.path.suffix != ".bag":
                continue
            with open(file.path, "rb") as opened:
                found = re.match(rb"#ROS(?:BAG|RECORD) V(\d+\.\d+)", opened.read(24))
            if found and found[1] != b"2.0":
                raise BagError(
                    f"{file.path}: is a ROS 1 bag of version {found[1].decode()}, only 2.0 can be read; "
                    "`rosbag filter OLD NEW True` of ROS 1 rewrites it"
                )

    # Looking through

    def _survey(self) -> None:
        """Count every message; a file that the library cannot read to its end is salvaged."""
        for file in self._files:
            found: dict[str, Topic] = {}
            if not file.damaged:
                try:
                    self._list_topics(file, found)
                    _count(file, found)
                except Exception as error:
                    # Whatever the damage made the library stumble over.
                    reason = str(error).partition("\n")[0] or type(error).__name__
                    file.problems.append(f"{file.name} is damaged ({reason}): read past the damage")
                    file.damaged = True
                    for topic in found.values():
                        topic.count = topic.first = topic.last = topic.longest = 0
            if file.damaged:
                _count(file, found)
            self._merge(found)
            self.problems += file.problems
        for name, told in self._told_serialisations().items():
            if name in self.topics and told != "cdr":
                self.topics[name].serialisation = told
        self._check_topics()

    def _told_serialisations(self) -> dict[str, str]:
        """What the metadata file says; some middlewares fill in the database's own table regardless."""
        told: dict[str, str] = {}
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            for entry in self._metadata["topics_with_message_count"]:
                topic = entry["topic_metadata"]
                told[topic["name"]] = str(topic["serialization_format"])
        return told

    def _list_topics(self, file: _File, found: dict[str, Topic]) -> None:
        with file.reader() as reader:
            for c in reader.connections:
                topic = found.setdefault(c.topic, Topic(c.topic, c.msgtype, self._serialisation(c)))
                if c.msgdef.format != MessageDefinitionFormat.NONE:
                    topic.definition = c.msgdef

    def _serialisation(self, connection: Connection) -> str:
        return "ros1" if self.is_ros1 else str(getattr(connection.ext, "serialization_format", "cdr"))

    def _merge(self, found: dict[str, Topic]) -> None:
        for name, topic in found.items():
            known = self.topics.setdefault(name, topic)
            if known is topic:
                continue
            if known.msgtype != topic.msgtype:
                self.problems.append(f"{name}: is of {known.msgtype} and of {topic.msgtype}")
            known.definition = known.definition or topic.definition
            if topic.count:
                known.first = topic.first if not known.count else min(known.first, topic.first)
                known.longest = max(
                    known.longest, topic.longest, topic.first - known.last if known.last else 0
                )
                known.last = max(known.last, topic.last)
                known.count += topic.count

    def _check_topics(self) -> None:
        for topic in self.topics.values():
            if topic.serialisation not in ("cdr", "ros1"):
                self.problems.append(
                    f"{topic.name}: is serialised as {topic.serialisation!r}, only cdr can be decoded"
                )
        said = self._metadata.get("message_count")
        found = sum(topic.count for topic in self.topics.values())
        if isinstance(said, int) and said != found:
            self.problems.append(f"{_METADATA} promises {said} messages, {found} were found")


def _store(is_ros1: bool) -> Any:
    """The types that are known without definitions in the bag."""
    ros2 = get_typestore(Stores.ROS2_JAZZY)
    if not is_ros1:
        return ros2
    # A salvaged file gives no definitions, and the library's ROS 1 types lack this one.
    store = get_typestore(Stores.ROS1_NOETIC)
    transforms = "tf2_msgs/msg/TFMessage"
    store.register({transforms: ros2.fielddefs[transforms]})
    return store


def _count(file: _File, found: dict[str, Topic]) -> None:
    for message in file.messages(None):
        if message.topic not in found:
            serialisation = "ros1" if file.path.suffix == ".bag" else "cdr"
            found[message.topic] = Topic(message.topic, message.msgtype, serialisation)
        found[message.topic].saw(message.time)


def _storage_of(path: Path) -> str | None:
    """The suffix that says how a file stores messages, behind which it may be compressed."""
    suffixes = path.suffixes[-2:]
    if suffixes and suffixes[-1] in (".zstd", ".zst"):
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _READERS else None


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts bag_9 before bag_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def _time(message: RawMessage) -> int:
    return message.time


def _unpacked_message(message: RawMessage) -> RawMessage:
    """Decompressed where rosbag2 compressed message by message; CDR never begins like zstd."""
    if message.data[:4] != _ZSTD_MAGIC:
        return message
    try:
        return message._replace(data=zstd.decompress(message.data))
    except (zstd.ZstdError, MemoryError):
        # Left as it is: it fails to decode, and is counted there.
        return message


def _in_order(messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
    """In the order of recording, where no message lies far from its place."""
    waiting: list[tuple[int, int, RawMessage]] = []
    newest = 0
    for number, message in enumerate(messages):
        heapq.heappush(waiting, (message.time, number, message))
        newest = max(newest, message.time)
        while waiting[0][0] < newest - _DISORDER:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]
