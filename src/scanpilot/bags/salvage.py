"""What is left of a damaged bag file, read past the damage; the rest is reported in words.

Whole files are read by the rosbags library, which gives up at the first fault. These readers look at
the bytes instead: pages of an SQLite file (its format document, sections 1.5, 1.6 and 2.1), records
of an MCAP file, and records of a ROS 1 bag. Messages come in the order in which they lie in the file.
"""

from __future__ import annotations

import bz2
import contextlib
import mmap
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import lz4.frame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Report = Callable[[str], None]

MCAP_MAGIC = b"\x89MCAP0\r\n"
ROS1_MAGIC = b"#ROSBAG V2.0\n"


class RawMessage(NamedTuple):
    """A message as it lies in a bag.

    Attributes:
        topic, msgtype: names; the type as ROS 2 writes it, such as ``std_msgs/msg/Bool``.
        time: nanoseconds, when it was recorded.
        data: serialised.
    """

    topic: str
    msgtype: str
    time: int
    data: bytes


def ros2_type(name: str) -> str:
    """A message type's name in ROS 2's spelling."""
    package, slash, rest = name.partition("/")
    return f"{package}/msg/{rest}" if slash and "/" not in rest else name


def salvage(path: Path, report: Report) -> Iterator[RawMessage]:
    """The messages of a damaged file that can still be read.

    Args:
        path: a file of SQLite, MCAP or ROS 1; what it begins with decides, then its name.
        report: is told what could not be read.
    """
    if not path.stat().st_size:
        report(f"{path.name}: is empty")
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:8] == MCAP_MAGIC or path.suffix == ".mcap":
            yield from _salvage_mcap(path.name, data, report)
        elif data[:8] == b"#ROSBAG " or path.suffix == ".bag":
            yield from _salvage_ros1(path.name, data, report)
        else:
            yield from _salvage_sqlite(path.name, data, report)


# SQLite


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = 0
    for i in range(9):
        byte = data[at + i]
        if i == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + i + 1
    raise AssertionError


class _Database:
    """Rows of the leaf pages of all tables; columns are not named there, but their number and kind tell."""

    def __init__(self, data: mmap.mmap) -> None:
        (size,) = struct.unpack(">H", data[16:18])
        size = 65536 if size == 1 else size
        if data[:15] != b"SQLite format 3" or size < 512 or size & (size - 1):
            # The header itself is damaged.
            size = 4096
        self._data, self._size, self._usable = data, size, size - data[20]
        self.lost = 0

    def rows(self, columns: range) -> Iterator[list[Any]]:
        for begin in range(0, len(self._data), self._size):
            header = begin + (100 if begin == 0 else 0)
            # Leaf of a table.
            if self._data[header] != 0x0D:
                continue
            (count,) = struct.unpack(">H", self._data[header + 3 : header + 5].ljust(2, b"\0"))
            for i in range(min(count, self._size // 4)):
                try:
                    (cell,) = struct.unpack(">H", self._data[header + 8 + 2 * i : header + 10 + 2 * i])
                    number, payload = self._payload(begin + cell)
                    row = self._record(payload)
                except (IndexError, struct.error, ValueError):
                    self.lost += 1
                    continue
                if len(row) in columns:
                    # The first column of all tables is an alias of the row's number and empty in the record.
                    yield [number, *row[1:]]

    def _payload(self, at: int) -> tuple[int, bytes]:
        length, at = _varint(self._data, at)
        number, at = _varint(self._data, at)
        most = self._usable - 35
        if length <= most:
            return number, self._exactly(at, length)
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._usable - 4)
        local = local if local <= most else least
        parts, missing = [self._exactly(at, local)], length - local
        (page,) = struct.unpack(">I", self._exactly(at + local, 4))
        while missing > 0:
            begin = (page - 1) * self._size
            if page < 1 or begin + self._size > len(self._data):
                raise ValueError("overflow page is not in the file")
            (page,) = struct.unpack(">I", self._data[begin : begin + 4])
            parts.append(self._exactly(begin + 4, min(missing, self._usable - 4)))
            missing -= len(parts[-1])
        return number, b"".join(parts)

    def _exactly(self, at: int, length: int) -> bytes:
        part = self._data[at : at + length]
        if len(part) != length:
            raise ValueError("ends too early")
        return part

    @staticmethod
    def _record(payload: bytes) -> list[Any]:
        end, at = _varint(payload, 0)
        values: list[Any] = []
        position = end
        while at < end:
            kind, at = _varint(payload, at)
            if kind in (8, 9):
                values.append(kind - 8)
            elif kind == 0:
                values.append(None)
            elif kind <= 6:
                width = (1, 2, 3, 4, 6, 8)[kind - 1]
                values.append(int.from_bytes(payload[position : position + width], "big", signed=True))
                position += width
            elif kind >= 12:
                width = (kind - 12) // 2
                value: Any = payload[position : position + width]
                if len(value) != width:
                    raise ValueError("ends too early")
                values.append(value.decode() if kind % 2 else value)
                position += width
            else:
                # rosbag2 stores no other kind.
                raise ValueError(f"column of kind {kind}")
        return values


def _salvage_sqlite(name: str, data: mmap.mmap, report: Report) -> Iterator[RawMessage]:
    if len(data) < 512:
        report(f"{name}: is too short for a database")
        return
    database = _Database(data)
    topics: dict[int, tuple[str, str]] = {}
    for row in database.rows(range(4, 8)):
        # A name and a type; message definitions have a format's name in the place of the type.
        if isinstance(row[1], str) and isinstance(row[2], str) and "/" in row[2]:
            topics[row[0]] = (row[1], row[2])
    database.lost = 0
    for _, topic, time, payload in database.rows(range(4, 5)):
        if isinstance(topic, int) and isinstance(time, int) and isinstance(payload, bytes):
            if topic in topics and time >= 0:
                yield RawMessage(*topics[topic], time, payload)
            else:
                database.lost += 1
    if not topics:
        report(f"{name}: its table of topics cannot be read: no message can be given to a topic")
    elif database.lost:
        report(f"{name}: {database.lost} messages are cut off or damaged and were left out")


# MCAP


def _partly(decompressor: Any, data: bytes) -> bytes:
    """As much as can be decompressed."""
    parts: list[bytes] = []
    # Each library has its own exceptions; whatever they say, this is where the data ends.
    with contextlib.suppress(Exception):
        parts.extend(decompressor.decompress(data[at : at + 4096]) for at in range(0, len(data), 4096))
    return b"".join(parts)


def decompress_file(packed: Path, plain: Path) -> bool:
    """Decompress a zstd file as far as it goes; returns whether that was to its end."""
    decompressor = zstd.ZstdDecompressor()
    with open(packed, "rb") as source, open(plain, "wb") as sink:
        while block := source.read(1 << 16):
            while block:
                if decompressor.eof:
                    # Another frame follows.
                    decompressor = zstd.ZstdDecompressor()
                try:
                    sink.write(decompressor.decompress(block))
                except zstd.ZstdError:
                    return False
                block = decompressor.unused_data if decompressor.eof else b""
    return bool(decompressor.eof)


def _decompressed(data: bytes, compression: str) -> bytes:
    if compression in ("", "none"):
        return data
    if compression == "zstd":
        return _partly(zstd.ZstdDecompressor(), data)
    if compression == "lz4":
        return _partly(lz4.frame.LZ4FrameDecompressor(), data)
    if compression == "bz2":
        return _partly(bz2.BZ2Decompressor(), data)
    raise ValueError(f"compression {compression!r}")


def _text(data: Any, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<I", data, at)
    part = data[at + 4 : at + 4 + length]
    if len(part) != length:
        raise ValueError("ends too early")
    return part.decode(), at + 4 + length


class _Mcap:
    def __init__(self, name: str, report: Report) -> None:
        self._name, self._report = name, report
        self._schemas: dict[int, str] = {}
        self._channels: dict[int, tuple[str, str]] = {}

    def records(self, data: Any, at: int, where: str) -> Iterator[RawMessage]:
        while at + 9 <= len(data):
            kind, (length,) = data[at], struct.unpack_from("<Q", data, at + 1)
            content = data[at + 9 : at + 9 + length]
            whole = len(content) == length
            if not 0x01 <= kind <= 0x0F:
                self._report(f"{self._name}: {where} is damaged at byte {at}; what follows was left out")
                return
            try:
                if kind == 0x06:
                    yield from self._chunk(content, whole)
                elif not whole:
                    pass
                elif kind == 0x03:
                    (number,) = struct.unpack_from("<H", content)
                    self._schemas[number] = _text(content, 2)[0]
                elif kind == 0x04:
                    number, schema = struct.unpack_from("<HH", content)
                    topic, _ = _text(content, 4)
                    self._channels[number] = (topic, self._schemas.get(schema, ""))
                elif kind == 0x05:
                    channel, _, time = struct.unpack_from("<HIQ", content)
                    yield RawMessage(*self._channels[channel], time, bytes(content[22:]))
            except (struct.error, ValueError, KeyError) as error:
                self._report(f"{self._name}: a record at byte {at} of {where} cannot be read: {error}")
            if not whole:
                self._report(f"{self._name}: {where} is cut off at byte {at + 9 + len(content)}")
                return
            at += 9 + length

    def _chunk(self, content: bytes, whole: bool) -> Iterator[RawMessage]:
        _, _, size, checksum = struct.unpack_from("<QQQI", content)
        compression, at = _text(content, 28)
        (length,) = struct.unpack_from("<Q", content, at)
        records = _decompressed(content[at + 8 : at + 8 + length], compression)
        intact = len(records) == size and (not checksum or crc32(records) == checksum)
        if whole and not intact:
            self._report(f"{self._name}: a chunk of {size} bytes is damaged and was left out")
            return
        yield from self.records(records, 0, "the last chunk" if not whole else "a chunk")


def _salvage_mcap(name: str, data: mmap.mmap, report: Report) -> Iterator[RawMessage]:
    if data[:8] != MCAP_MAGIC:
        report(f"{name}: does not begin like an MCAP file")
        return
    yield from _Mcap(name, report).records(data, 8, "the file")


# ROS 1


class _Ros1:
    def __init__(self, name: str, report: Report) -> None:
        self._name, self._report = name, report
        self._connections: dict[int, tuple[str, str]] = {}

    def records(self, data: Any, at: int, where: str) -> Iterator[RawMessage]:
        while at + 8 <= len(data):
            try:
                header, begin = self._header(data, at)
                (length,) = struct.unpack_from("<I", data, begin)
            except (struct.error, ValueError):
                self._report(f"{self._name}: {where} is damaged at byte {at}; what follows was left out")
                return
            content = data[begin + 4 : begin + 4 + length]
            whole = len(content) == length
            try:
                yield from self._record(header, content, whole)
            except (struct.error, ValueError, KeyError, IndexError) as error:
                self._report(f"{self._name}: a record at byte {at} of {where} cannot be read: {error!r}")
            if not whole:
                self._report(f"{self._name}: {where} is cut off at byte {begin + 4 + len(content)}")
                return
            at = begin + 4 + length

    def _record(self, header: dict[str, bytes], content: bytes, whole: bool) -> Iterator[RawMessage]:
        kind = header["op"][0]
        if kind == 0x05:
            records = _decompressed(content, header["compression"].decode())
            yield from self.records(records, 0, "a chunk")
        elif kind == 0x07 and whole:
            (number,) = struct.unpack("<I", header["conn"])
            fields = self._fields(content)
            topic = "/" + header["topic"].decode().strip("/")
            self._connections[number] = (topic, ros2_type(fields["type"].decode()))
        elif kind == 0x02 and whole:
            (number,) = struct.unpack("<I", header["conn"])
            seconds, nanoseconds = struct.unpack("<II", header["time"])
            yield RawMessage(*self._connections[number], seconds * 10**9 + nanoseconds, bytes(content))

    def _header(self, data: Any, at: int) -> tuple[dict[str, bytes], int]:
        (length,) = struct.unpack_from("<I", data, at)
        part = data[at + 4 : at + 4 + length]
        if len(part) != length or not length:
            raise ValueError("ends too early")
        return self._fields(part), at + 4 + length

    @staticmethod
    def _fields(data: bytes) -> dict[str, bytes]:
        fields, at = {}, 0
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            name, equals, value = data[at + 4 : at + 4 + length].partition(b"=")
            if not equals:
                raise ValueError("not a field")
            fields[name.decode()] = value
            at += 4 + length
        return fields


def _salvage_ros1(name: str, data: mmap.mmap, report: Report) -> Iterator[RawMessage]:
    if data[: len(ROS1_MAGIC)] != ROS1_MAGIC:
        report(f"{name}: does not begin like a ROS 1 bag of version 2.0")
        return
    yield from _Ros1(name, report).records(data, len(ROS1_MAGIC), "the file")
