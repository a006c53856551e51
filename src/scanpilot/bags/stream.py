"""From a bag's messages to the events of `scanpilot.transitions`: which topic is what, and when.

Stamps are those of the headers. What has no header (Twist, Bool) is given the time at which it was
recorded, on the headers' clock; see `HeaderClock`. Goals in other frames are placed in the odometry
frame where they lie when they are set.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from scanpilot import messages
from scanpilot.bags import BagError
from scanpilot.bags.files import Bag, Topic
from scanpilot.bags.salvage import RawMessage
from scanpilot.geometry import compose
from scanpilot.transitions import Commanded, Event, GoalSet, Touched
from scanpilot.types import InvalidInput, Odometry, Pose2D

Role = Literal["scan", "odom", "cmd", "goal", "contact", "clock"]

SCAN = "sensor_msgs/msg/LaserScan"
ODOMETRY = "nav_msgs/msg/Odometry"
TWIST = "geometry_msgs/msg/Twist"
TWIST_STAMPED = "geometry_msgs/msg/TwistStamped"
GOAL = "geometry_msgs/msg/PoseStamped"
BOOL = "std_msgs/msg/Bool"
HAZARDS = "irobot_create_msgs/msg/HazardDetectionVector"
BUMPER = "kobuki_ros_interfaces/msg/BumperEvent"
CLOCK = "rosgraph_msgs/msg/Clock"
TF = "tf2_msgs/msg/TFMessage"

_TYPES: dict[Role, tuple[str, ...]] = {
    "scan": (SCAN,),
    "odom": (ODOMETRY,),
    "cmd": (TWIST, TWIST_STAMPED),
    "goal": (GOAL,),
    "contact": (BOOL, HAZARDS, BUMPER),
    "clock": (CLOCK,),
}
# The best first. A topic of another name is taken only for the roles in _ANY_NAME.
_NAMES: dict[Role, tuple[str, ...]] = {
    "scan": ("scan", "base_scan", "scan_filtered", "front_scan", "scan_front", "laser_scan"),
    "odom": ("odom", "odometry", "odometry/filtered", "wheel_odom", "diff_drive_controller/odom"),
    "cmd": ("cmd_vel", "cmd_vel_stamped", "cmd_vel_out", "cmd_vel_smoothed", "cmd_vel_nav"),
    "goal": ("goal_pose", "move_base_simple/goal", "goal"),
    "contact": ("contact", "bumper", "bump", "is_crashed", "collision", "hazard_detection"),
    "clock": ("clock",),
}
_ANY_NAME: tuple[Role, ...] = ("scan", "odom", "cmd")
# A ground truth is what a robot does not have.
_NEVER = ("ground_truth", "truth", "base_pose_ground_truth")
_MOST_REASONS = 50


@dataclass(frozen=True)
class Roles:
    """Which topic is what; ``None`` where there is none.

    Attributes:
        others: topics that could have been taken as well, by role.
        tf, tf_static: topics with transforms.
    """

    scan: str | None = None
    odom: str | None = None
    cmd: str | None = None
    goal: str | None = None
    contact: str | None = None
    clock: str | None = None
    tf: tuple[str, ...] = ()
    tf_static: tuple[str, ...] = ()
    others: tuple[tuple[Role, tuple[str, ...]], ...] = ()

    def of(self, topic: str) -> str | None:
        """The role of a topic."""
        for role in _TYPES:
            if getattr(self, role) == topic:
                return role
        if topic in self.tf_static:
            return "tf_static"
        return "tf" if topic in self.tf else None

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics with a role."""
        named = [getattr(self, role) for role in _TYPES]
        return tuple(name for name in named if name) + self.tf + self.tf_static


def find_roles(bag: Bag, chosen: dict[Role, str] | None = None) -> Roles:
    """Guess by type and name, in the namespace of the scan; ``chosen`` topics are taken as told.

    Raises:
        BagError: a chosen topic is not in the bag, or is of no type for its role.
    """
    chosen = chosen or {}
    found: dict[Role, str | None] = {}
    others: list[tuple[Role, tuple[str, ...]]] = []
    for role, types in _TYPES.items():
        if role in chosen:
            found[role] = _told(bag, role, chosen[role])
            continue
        home = _namespace(found.get("scan"))
        candidates = [t for t in bag.topics.values() if t.msgtype in types and t.count and bag.knows(t)]
        ranked = sorted((_rank(t, role, home) for t in candidates), key=lambda ranked: ranked[:4])
        names = [name for *_, name in ranked if name is not None]
        found[role] = names[0] if names else None
        if role in _ANY_NAME and len(names) > 1:
            others.append((role, tuple(names[1:])))
    transforms = [t.name for t in bag.topics.values() if t.msgtype == TF and t.count]
    static = tuple(name for name in transforms if name.rstrip("/").endswith("static"))
    moving = tuple(name for name in transforms if name not in static)
    return Roles(tf=moving, tf_static=static, others=tuple(others), **found)


def _told(bag: Bag, role: Role, name: str) -> str:
    for topic in bag.topics.values():
        if topic.name.strip("/") == name.strip("/"):
            if topic.msgtype not in _TYPES[role]:
                wanted = " or ".join(_TYPES[role])
                raise BagError(f"{topic.name}: is of {topic.msgtype}, a {role} topic is of {wanted}")
            return topic.name
    raise BagError(f"no topic {name} in {bag.path}; there are {', '.join(sorted(bag.topics)) or 'none'}")


def _namespace(topic: str | None) -> str:
    return "" if topic is None else topic.strip("/").rpartition("/")[0]


def _rank(topic: Topic, role: Role, home: str) -> tuple[int, int, int, str, str | None]:
    """Sorts the best first; the last entry is ``None`` for a topic that does not suit."""
    name = topic.name.strip("/")
    local = name[len(home) + 1 :] if home and name.startswith(home + "/") else name
    known = _NAMES[role]
    position = next((i for i, n in enumerate(known) if local == n or local.endswith("/" + n)), len(known))
    suits = position < len(known) or role in _ANY_NAME
    suits = suits and not any(local == n or local.endswith("/" + n) for n in _NEVER)
    elsewhere = 0 if _namespace(topic.name).startswith(home) else 1
    return elsewhere, position, -topic.count, name, topic.name if suits else None


# Transforms


class Rigid(NamedTuple):
    """A rotation (quaternion x, y, z, w) and the translation after it, metres."""

    rotation: messages.Quaternion
    translation: tuple[float, float, float]

    def after(self, inner: Rigid) -> Rigid:
        """The transform that does ``inner`` first."""
        x, y, z = _rotated(self.rotation, inner.translation)
        a, b, c = self.translation
        return Rigid(_product(self.rotation, inner.rotation), (a + x, b + y, c + z))

    def undone(self) -> Rigid:
        """The inverse."""
        x, y, z, w = self.rotation
        back = (-x, -y, -z, w)
        a, b, c = _rotated(back, self.translation)
        return Rigid(back, (-a, -b, -c))


def _product(p: messages.Quaternion, q: messages.Quaternion) -> messages.Quaternion:
    px, py, pz, pw = p
    qx, qy, qz, qw = q
    return (
        pw * qx + px * qw + py * qz - pz * qy,
        pw * qy - px * qz + py * qw + pz * qx,
        pw * qz + px * qy - py * qx + pz * qw,
        pw * qw - px * qx - py * qy - pz * qz,
    )


def _rotated(q: messages.Quaternion, v: tuple[float, float, float]) -> tuple[float, float, float]:
    x, y, z, w = q
    back = (-x, -y, -z, w)
    rx, ry, rz, _ = _product(_product(q, (*v, 0.0)), back)
    return rx, ry, rz


class Frames:
    """Where frames lie relative to each other, by what transforms said last.

    Attributes:
        said: for each (parent, child), the different transforms that were said, at most a few.
        static: the pairs that were said on a static topic.
        children: the children of each parent, in the order they were seen.
    """

    _MOST = 5

    def __init__(self) -> None:
        self.said: dict[tuple[str, str], list[Rigid]] = {}
        self.static: set[tuple[str, str]] = set()
        self.children: dict[str, list[str]] = {}
        self._parent: dict[str, str] = {}
        self._last: dict[tuple[str, str], Rigid] = {}

    def take(self, message: Any, static: bool) -> None:
        """A ``tf2_msgs/TFMessage``; transforms that are none are left out."""
        for stamped in message.transforms:
            parent, child = (
                messages.frame_id(stamped.header.frame_id),
                messages.frame_id(stamped.child_frame_id),
            )
            t, q = stamped.transform.translation, stamped.transform.rotation
            norm = math.sqrt(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w)
            if not (norm > 1e-6 and math.isfinite(norm + t.x + t.y + t.z)) or parent == child:
                continue
            rigid = Rigid((q.x / norm, q.y / norm, q.z / norm, q.w / norm), (t.x, t.y, t.z))
            pair = (parent, child)
            if pair not in self._last:
                self.children.setdefault(parent, []).append(child)
                self.said[pair] = []
            known = self.said[pair]
            if static or pair not in self.static:
                self._parent[child], self._last[pair] = parent, rigid
            if len(known) < self._MOST and not any(_same(rigid, other) for other in known):
                known.append(rigid)
            if static:
                self.static.add(pair)

    def find(self, target: str, source: str) -> Rigid | None:
        """``source`` in ``target``; ``None`` if nothing leads from one to the other."""
        up, down = self._chain(source), self._chain(target)
        common = next((frame for frame in up if frame in down), None)
        if common is None:
            return None
        to_common, from_common = self._to(source, common), self._to(target, common)
        return from_common.undone().after(to_common)

    def planar(self, target: str, source: str) -> Pose2D | None:
        """`find`, seen from above."""
        rigid = self.find(target, source)
        if rigid is None:
            return None
        (x, y, z, w), t = rigid.rotation, rigid.translation
        return Pose2D(t[0], t[1], math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z)))

    def path(self, target: str, source: str) -> list[tuple[str, str]]:
        """The (parent, child) pairs from ``source`` up to ``target``."""
        chain = self._chain(source)
        if target not in chain:
            return []
        chain = chain[: chain.index(target) + 1]
        return list(zip(chain[1:], chain[:-1], strict=True))

    def _chain(self, frame: str) -> list[str]:
        chain = [frame]
        while chain[-1] in self._parent and self._parent[chain[-1]] not in chain:
            chain.append(self._parent[chain[-1]])
        return chain

    def _to(self, source: str, ancestor: str) -> Rigid:
        rigid, frame = Rigid((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0)), source
        while frame != ancestor:
            parent = self._parent[frame]
            rigid = self._last[(parent, frame)].after(rigid)
            frame = parent
        return rigid


def _same(a: Rigid, b: Rigid) -> bool:
    """The same but for the last digits; a quaternion and its negative are one rotation."""
    dot = abs(sum(p * q for p, q in zip(a.rotation, b.rotation, strict=True)))
    apart = max(abs(p - q) for p, q in zip(a.translation, b.translation, strict=True))
    return dot > 1.0 - 1e-6 and apart < 1e-3


# Time


class HeaderClock:
    """The time on the headers' clock at which something without a header was recorded.

    ``same``: headers and recorder share a clock, so that is the time of recording. Else, where the bag
    has ``/clock``, its last tick, as a node with simulated time would have read it; where not, the
    newest header's stamp and what has passed since it was recorded.
    """

    def __init__(self, same: bool) -> None:
        self._same = same
        self._tick: float | None = None
        self._newest: tuple[float, int] | None = None

    def tick(self, seconds: float) -> None:
        """``/clock`` said so."""
        self._tick = seconds

    def saw(self, stamp: float, recorded: int) -> None:
        """A header with this stamp was recorded at this time, nanoseconds."""
        self._newest = (stamp, recorded)

    def at(self, recorded: int) -> float | None:
        """Seconds; ``None`` while there is nothing to tell them by."""
        if self._same:
            return 1e-9 * recorded
        if self._tick is not None:
            return self._tick
        if self._newest is None:
            return None
        stamp, when = self._newest
        return stamp + 1e-9 * (recorded - when)


# Events


@dataclass(frozen=True)
class StreamConfig:
    """What a bag does not say by itself.

    Attributes:
        same_clock: headers and recorder share a clock.
        header_stamps: the topics' headers hold times; otherwise the time of recording is taken.
        twist_in_parent_frame: odometry states its velocity in the odometry frame.
    """

    same_clock: bool = True
    header_stamps: bool = True
    twist_in_parent_frame: bool = False


def events(
    bag: Bag, roles: Roles, config: StreamConfig, left_out: collections.Counter[str]
) -> Iterator[Event]:
    """A bag's messages as events, in the order of recording.

    Args:
        bag: opened.
        roles: which topic is what.
        config: about clocks and frames.
        left_out: counts, in words, the messages that say nothing that could be used.
    """
    reader = _EventReader(roles, config)
    # Only goals need transforms here, of which there are many.
    topics = set(roles.topics) - (set() if roles.goal else {*roles.tf, *roles.tf_static})
    for raw in bag.messages(topics):
        yield from reader.read_raw(bag, raw, left_out)


class _EventReader:
    def __init__(self, roles: Roles, config: StreamConfig) -> None:
        self._roles, self._config = roles, config
        self._clock = HeaderClock(config.same_clock)
        self._frames = Frames()
        self._odometry: Odometry | None = None
        self._odometry_frames = ("odom", "base_link")

    def read_raw(self, bag: Bag, raw: RawMessage, left_out: collections.Counter[str]) -> Sequence[Event]:
        try:
            return self.read(raw.topic, bag.decode(raw), raw.time)
        except BagError as error:
            reason = str(error)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            # `InvalidInput`, and what damaged bytes that happen to decode make of a message.
            reason = f"{raw.topic}: {error}"
        left_out[reason if reason in left_out or len(left_out) < _MOST_REASONS else "other reasons"] += 1
        return []

    def read(self, topic: str, message: Any, recorded: int) -> Sequence[Event]:
        role = self._roles.of(topic)
        if role == "scan":
            scan = messages.scan_from(message)
            return [self._stamped(scan, recorded)]
        if role == "odom":
            return [self._read_odometry(message, recorded)]
        if role == "cmd":
            return self._at(message, recorded, lambda stamp: Commanded(stamp, messages.twist_from(message)))
        if role == "goal":
            return self._at(message, recorded, lambda stamp: GoalSet(stamp, self._placed(message)))
        if role == "contact":
            return self._at(message, recorded, lambda stamp: Touched(stamp, _touching(message)))
        if role == "clock":
            self._clock.tick(messages.seconds(message.clock))
        elif role in ("tf", "tf_static"):
            self._frames.take(message, role == "tf_static")
        return []

    def _read_odometry(self, message: Any, recorded: int) -> Odometry:
        odometry = messages.odometry_from(message, self._config.twist_in_parent_frame)
        self._odometry_frames = (
            messages.frame_id(message.header.frame_id) or "odom",
            messages.frame_id(message.child_frame_id) or "base_link",
        )
        self._odometry = self._stamped(odometry, recorded)
        return self._odometry

    def _stamped(self, event: Any, recorded: int) -> Any:
        if not self._config.header_stamps:
            return type(event)(**{**event.__dict__, "stamp": 1e-9 * recorded})
        self._clock.saw(event.stamp, recorded)
        return event

    def _at(self, message: Any, recorded: int, make: Any) -> Sequence[Event]:
        """The event at its header's stamp, or when it was recorded."""
        at = self._clock.at(recorded)
        return [] if at is None else [make(messages.stamp_near(message, at))]

    def _placed(self, message: Any) -> Pose2D:
        """A goal in the odometry frame.

        Raises:
            InvalidInput: nobody says where its frame lies.
        """
        pose, frame = messages.pose_from(message.pose), messages.frame_id(message.header.frame_id)
        odometry, base = self._odometry_frames
        if frame in ("", odometry):
            return pose
        if frame == base and self._odometry is not None:
            return compose(self._odometry.pose, pose)
        where = self._frames.planar(odometry, frame)
        if where is None:
            raise InvalidInput(f"goal in frame {frame!r}: no transform in the bag leads to {odometry!r}")
        return compose(where, pose)


def _touching(message: Any) -> bool:
    if hasattr(message, "data"):
        return bool(message.data)
    if hasattr(message, "detections"):
        # irobot_create_msgs: 1 is BUMP.
        return any(detection.type == 1 for detection in message.detections)
    return bool(message.state)
