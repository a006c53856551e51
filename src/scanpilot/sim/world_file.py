"""Stage ``.world`` files: the grammar, and the world it describes.

Two layers. The first turns text into a tree of entities (tokens, includes, defines); the
second turns entities into a `World` (units, blocks, bitmaps, heights, robots and their
lidars). Where Stage and its manual differ, Stage is followed: the grammar is the one of
Stage 4.3. Every refusal is a `WorldFileError` that names file, line and what was expected.

Borders: degrees and the file's length unit become radians and metres here and nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from scanpilot.geometry import compose, transform_points
from scanpilot.robot import Footprint, Kinematics, Lidar, Limits, RobotSpec
from scanpilot.sim.bitmap import outline_loops, read_occupied
from scanpilot.sim.map_file import read_map_file
from scanpilot.sim.sdf_file import read_sdf_file
from scanpilot.sim.world import (
    PlacedLidar,
    PlacedRobot,
    Solid,
    World,
    WorldFileError,
    box,
    build_world,
    convex_hull,
    cut,
    points_in_loop,
    regular_polygon,
)
from scanpilot.types import DoubleArray, Pose2D

# --- text -> tokens ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Token:
    kind: str  # word, number, string, or the bracket itself
    text: str
    file: str
    line: int

    def error(self, message: str) -> WorldFileError:
        return WorldFileError(f"{self.file}:{self.line}: {message}")


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>"[^"\n]*")
    |(?P<number>[-+.0-9]+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_.\-]*(?:\[\d*\])?[A-Za-z0-9_.\-]*)
    |(?P<bracket>[()\[\]])""",
    re.VERBOSE,
)
_MOST_TOKENS = 2_000_000


def _tokens_of_file(
    path: Path, root: Path, stack: tuple[Path, ...], asked: _Token | None
) -> Iterator[_Token]:
    """Tokens of a file with its includes in place; paths are relative to the *top-level* file's folder."""
    if path in stack:
        assert asked is not None
        raise asked.error(f"{asked.text!r} includes itself")
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        # ValueError: a name with a zero byte.
        reason = getattr(error, "strerror", None) or error
        if asked is None:
            raise WorldFileError(f"{path}: cannot be read: {reason}") from error
        raise asked.error(f"include {asked.text!r} not found: {path} cannot be read ({reason})") from error
    name = str(path)
    including: _Token | None = None
    for token in _tokens_of_text(text, name):
        if including is not None:
            if token.kind != "string":
                raise including.error(
                    f"include is followed by {token.text!r}, expected a file name in quotes"
                )
            yield from _tokens_of_file(root / token.text, root, (*stack, path), token)
            including = None
        elif token.kind == "word" and token.text == "include":
            including = token
        else:
            yield token
    if including is not None:
        raise including.error("include at the end of the file, expected a file name in quotes")


def _tokens_of_text(text: str, name: str) -> Iterator[_Token]:
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            shown = text[at : at + 20].splitlines()[0] if text[at] != '"' else "a quote that is not closed"
            raise WorldFileError(
                f"{name}:{line}: cannot read {shown!r}: expected a word, number, string or bracket"
            )
        at = match.end()
        kind = match.lastgroup
        if kind == "newline":
            line += 1
        elif kind == "string":
            yield _Token("string", match.group()[1:-1], name, line)
        elif kind == "bracket":
            yield _Token(match.group(), match.group(), name, line)
        elif kind in ("number", "word"):
            yield _Token(kind, match.group(), name, line)


# --- tokens -> entities -----------------------------------------------------------------------------------


@dataclass
class _Entity:
    """``type ( properties and children )``, with macros already expanded."""

    type: str
    token: _Token
    properties: dict[str, tuple[_Token, list[_Token]]] = field(default_factory=dict)
    children: list[_Entity] = field(default_factory=list)

    def numbers(self, name: str, defaults: tuple[float, ...]) -> tuple[float, ...]:
        """A number or tuple; places that the file leaves out keep their default."""
        if name not in self.properties:
            return defaults
        values = list(defaults)
        for index, token in enumerate(self.properties[name][1][: len(values)]):
            values[index] = _number(token, name)
        return tuple(values)

    def number(self, name: str, default: float) -> float:
        return self.numbers(name, (default,))[0]

    def text(self, name: str, default: str) -> str:
        if name not in self.properties:
            return default
        value = self.properties[name][1]
        if not value or value[0].kind != "string":
            raise self.properties[name][0].error(f"{name} is not a string in quotes")
        return value[0].text

    def error(self, name: str, message: str) -> WorldFileError:
        """An error at a property, or at the entity itself if the file does not state it."""
        return (self.properties[name][0] if name in self.properties else self.token).error(message)


def _number(token: _Token, name: str) -> float:
    if token.kind == "number":
        try:
            return float(token.text)
        except ValueError:
            pass
    raise token.error(f"{name} has {token.text!r}, expected a number without exponent")


class _Parser:
    """Builds entities as Stage does: a macro's body first, then what the instance adds."""

    _DEEPEST = 40
    _MOST_ENTITIES = 200_000

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.macros: dict[str, int] = {}  # name -> index of the base type's token
        self.count = 0

    def parse(self, name: str) -> _Entity:
        root = _Entity("world", _Token("word", "world", name, 1))
        at = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.kind != "word":
                raise token.error(
                    f"unexpected {token.text!r}, expected a property, an entity, include or define"
                )
            at = self._define(at) if token.text == "define" else self._word(root, at, 0)
        return root

    def _define(self, at: int) -> int:
        words = self.tokens[at + 1 : at + 3]
        if len(words) < 2 or words[0].kind != "word" or words[1].kind != "word":
            raise self.tokens[at].error("incomplete define, expected: define NEW BASE ( ... )")
        # The first of two defines of one name wins.
        self.macros.setdefault(words[0].text, at + 2)
        return self._skip_entity(at + 2)

    def _skip_entity(self, at: int) -> int:
        start = self.tokens[at]
        if at + 1 >= len(self.tokens) or self.tokens[at + 1].kind != "(":
            raise start.error(f"define of a {start.text} lacks its ( ... )")
        depth = 0
        for index in range(at + 1, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[index].kind, 0)
            if depth == 0:
                return index + 1
        raise start.error("missing )")

    def _word(self, parent: _Entity, at: int, depth: int) -> int:
        """A property or a child entity of ``parent``; returns the index after it."""
        token = self.tokens[at]
        follows = self.tokens[at + 1] if at + 1 < len(self.tokens) else None
        if follows is not None and follows.kind == "(":
            entity, after = self._entity(at, depth + 1)
            parent.children.append(entity)
            return after
        if follows is None or follows.kind not in ("number", "string", "["):
            found = "the end of the file" if follows is None else repr(follows.text)
            raise token.error(f"{token.text} is followed by {found}, expected a number, a string, [ or (")
        if (follows.line, follows.file) != (token.line, token.file):
            raise token.error(f"{token.text} has no value on its line")
        return self._property(parent, at)

    def _property(self, parent: _Entity, at: int) -> int:
        token, value = self.tokens[at], self.tokens[at + 1]
        if value.kind != "[":
            parent.properties[token.text] = (token, [value])
            return at + 2
        values: list[_Token] = []
        for index in range(at + 2, len(self.tokens)):
            value = self.tokens[index]
            if value.kind == "]":
                parent.properties[token.text] = (token, values)
                return index + 1
            if value.kind not in ("number", "string"):
                raise value.error(f"unexpected {value.text!r} in the tuple of {token.text}, expected ]")
            values.append(value)
        raise token.error(f"missing ] after {token.text}")

    def _entity(self, at: int, depth: int) -> tuple[_Entity, int]:
        """The entity whose type stands at ``at``; a macro's body comes first, the instance's own after."""
        token = self.tokens[at]
        self.count += 1
        if depth > self._DEEPEST:
            raise token.error(
                f"{token.text} nests deeper than {self._DEEPEST} levels; does a define use itself?"
            )
        if self.count > self._MOST_ENTITIES:
            raise token.error(f"more than {self._MOST_ENTITIES} entities; do defines multiply each other?")
        if token.text in self.macros:
            entity, _ = self._entity(self.macros[token.text], depth + 1)
            entity.token = token
        else:
            entity = _Entity(token.text, token)
        at += 2
        while at < len(self.tokens):
            inner = self.tokens[at]
            if inner.kind == ")":
                return entity, at + 1
            if inner.kind != "word":
                raise inner.error(
                    f"unexpected {inner.text!r} in {token.text}, expected a property, an entity or )"
                )
            at = self._word(entity, at, depth)
        raise token.error(f"missing ) of {token.text}")


# --- entities -> world ------------------------------------------------------------------------------------

# Types Stage knows that have no body of their own unless blocks are given.
_BODYLESS = frozenset(
    {
        "ranger",
        "blobfinder",
        "camera",
        "fiducial",
        "gripper",
        "bumper",
        "blinkenlight",
        "lightindicator",
        "loadcell",
        "powerpack",
        "audio",
        "wifi_detector",
    }
)
_BODIES = frozenset({"model", "position", "actuator"})
_NO_MODELS = frozenset({"window", "block", "sensor", "light"})
_OLD_TYPES = {
    "laser": "ranger with a sensor",
    "sonar": "ranger with sensors",
    "ir": "ranger with sensors",
    "map": "model with a bitmap",
    "environment": "model with a bitmap",
}
_DRIVES: dict[str, Kinematics] = {"diff": "differential", "omni": "omnidirectional", "car": "car"}
_SENSOR_SIZE_Z = 0.02
_MOST_SAMPLES = 100_000


@dataclass(frozen=True)
class _Units:
    length: float
    angle: float


@dataclass(frozen=True)
class _Frame:
    """Where a model stands: pose of its frame in the root's frame, and the height of its floor."""

    pose: Pose2D
    z: float


class _Builder:
    def __init__(self, root: _Entity, folder: Path, stage_cells: bool) -> None:
        self.folder = folder
        resolution = root.number("resolution", 0.02)
        if not 0.0 < resolution < 1e3:
            raise root.error("resolution", f"resolution is {resolution}, expected more than 0")
        self.cell = resolution if stage_cells else None
        unit_length = root.text("unit_length", "m")
        unit_angle = root.text("unit_angle", "degrees")
        lengths = {"m": 1.0, "cm": 0.01, "mm": 0.001}
        if unit_length not in lengths:
            raise root.error("unit_length", f'unit_length is {unit_length!r}, expected "m", "cm" or "mm"')
        if unit_angle not in ("degrees", "radians"):
            raise root.error("unit_angle", f'unit_angle is {unit_angle!r}, expected "degrees" or "radians"')
        self.units = _Units(lengths[unit_length], 1.0 if unit_angle == "radians" else math.pi / 180.0)
        self.solids: list[Solid] = []
        self.robots: list[PlacedRobot] = []

    def build(self, root: _Entity, name: str) -> World:
        counts: dict[str, int] = {}
        for entity in root.children:
            if entity.type in _NO_MODELS:
                continue
            model = _name(entity, None, counts)
            frame = self._frame(entity, _Frame(Pose2D(0.0, 0.0, 0.0), 0.0))
            if entity.type == "position":
                self.robots.append(self._robot(entity, frame, model))
            else:
                self._static(entity, frame, model)
        interval = root.number("interval_sim", 100.0) / 1000.0
        if not 0.0 < interval < 1e4:
            raise root.error("interval_sim", f"interval_sim is {1000 * interval} ms, expected more than 0")
        solids = [_hollow_around(solid, self.robots) for solid in self.solids]
        world = build_world(name, solids, robots=self.robots, interval=interval)
        return cut_for(world, self.robots[0]) if self.robots else world

    def _static(self, entity: _Entity, frame: _Frame, name: str) -> None:
        """A model that does not move, and everything on it."""
        self.solids.extend(self._parts(entity, frame, name))

    def _parts(self, entity: _Entity, frame: _Frame, name: str) -> list[Solid]:
        """The bodies of a model and its children, in the frame that ``frame`` is given in."""
        _check_type(entity)
        parts = self._body(entity, frame, name)
        counts: dict[str, int] = {}
        for child in entity.children:
            if child.type in _NO_MODELS:
                continue
            child_name = _name(child, name, counts)
            on_top = _Frame(frame.pose, frame.z + self._stack_height(entity))
            parts.extend(self._parts(child, self._frame(child, on_top), child_name))
        return parts

    def _stack_height(self, entity: _Entity) -> float:
        """How far above a model's floor its children stand."""
        return self._size(entity)[2] if entity.number("stack_children", 1.0) else 0.0

    def _frame(self, entity: _Entity, parent: _Frame) -> _Frame:
        x, y, z, a = entity.numbers("pose", (0.0, 0.0, 0.0, 0.0))
        length = self.units.length
        pose = compose(parent.pose, Pose2D(x * length, y * length, a * self.units.angle))
        return _Frame(pose, parent.z + z * length)

    def _size(self, entity: _Entity) -> tuple[float, float, float]:
        # Defaults are metres whatever the unit; what the file states is in its unit.
        length = self.units.length
        x, y, z = entity.numbers("size", (0.4 / length, 0.4 / length, 1.0 / length))
        if min(x, y, z) < 0.0 or max(x, y, z) * length > 1e5:
            raise entity.error("size", f"size is {x} {y} {z}, expected numbers of 0 or more, at most 100 km")
        return x * length, y * length, z * length

    def _body(self, entity: _Entity, frame: _Frame, name: str) -> list[Solid]:
        """The blocks of one model, centred, scaled to its size, moved to its place."""
        blocks = self._blocks(entity)
        if not blocks:
            return []
        corners = np.concatenate([loop for loops, _, _ in blocks for loop in loops])
        low, high = corners.min(axis=0), corners.max(axis=0)
        extent = np.maximum(high - low, 1e-12)
        top = max(z_high for _, _, z_high in blocks)
        size = self._size(entity)
        # A file may state a height of blocks as 0: then the size's height stands.
        scale_z = size[2] / top if top > 0.0 else 1.0
        ox, oy, oz, oa = entity.numbers("origin", (0.0, 0.0, 0.0, 0.0))
        length = self.units.length
        place = compose(frame.pose, Pose2D(ox * length, oy * length, oa * self.units.angle))
        floor = frame.z + oz * length
        visible = entity.number("ranger_return", 1.0) >= 0.0
        obstacle = bool(entity.number("obstacle_return", 1.0))
        solids = []
        for loops, z_low, z_high in blocks:
            scaled = tuple(
                transform_points(place, (loop - 0.5 * (low + high)) / extent * size[:2]) for loop in loops
            )
            if self.cell is not None and len(loops) > 1:
                scaled = tuple(_in_cells(loop, self.cell) for loop in scaled)
            solids.append(
                Solid(
                    scaled,
                    z=(floor + scale_z * z_low, floor + scale_z * z_high),
                    obstacle=obstacle,
                    visible=visible,
                    color=self._color(entity),
                    name=name,
                    oriented=len(loops) > 1,
                )
            )
        return solids

    def _blocks(self, entity: _Entity) -> list[tuple[list[DoubleArray], float, float]]:
        """Outlines and heights of a model's blocks in their own units."""
        blocks = [self._block(child) for child in entity.children if child.type == "block"]
        if "bitmap" in entity.properties:
            blocks.append((self._bitmap(entity), 0.0, 1.0))
        if not blocks and entity.type not in _BODYLESS:
            blocks.append(([box(0.0, 0.0, 1.0, 1.0)], 0.0, 1.0))
        if blocks and entity.number("boundary", 0.0):
            blocks.extend(_boundary(blocks))
        return blocks

    def _block(self, block: _Entity) -> tuple[list[DoubleArray], float, float]:
        count = block.number("points", 0.0)
        if not 1 <= count <= 100_000:
            raise block.error("points", f"block has points {count:g}, expected 1 or more")
        corners = []
        for index in range(int(count)):
            key = f"point[{index}]"
            if key not in block.properties:
                raise block.token.error(f"block states {int(count)} points but lacks {key}")
            corners.append(block.numbers(key, (0.0, 0.0)))
        low, high = block.numbers("z", (0.0, 1.0))
        return [np.array(corners, dtype=np.float64)], min(low, high), max(low, high)

    def _bitmap(self, entity: _Entity) -> list[DoubleArray]:
        token = entity.properties["bitmap"][0]
        path = self.folder / entity.text("bitmap", "")
        if not path.is_file():
            raise token.error(f"bitmap {entity.text('bitmap', '')!r} not found: no file {path}")
        try:
            occupied = read_occupied(path)
        except (OSError, ValueError) as error:
            raise token.error(f"bitmap {path} cannot be read as an image: {error}") from error
        if not occupied.any():
            raise token.error(f"bitmap {path} has no dark pixel, expected obstacles of at most 127 of 255")
        return outline_loops(occupied)

    def _color(self, entity: _Entity) -> str:
        if "color_rgba" in entity.properties:
            channels = entity.numbers("color_rgba", (0.5, 0.5, 0.5, 1.0))[:3]
            return "#" + "".join(f"{round(255 * min(max(c, 0.0), 1.0)):02x}" for c in channels)
        value = entity.properties.get("color", (entity.token, []))[1]
        return value[0].text if value and value[0].kind == "string" else "gray"

    def _robot(self, entity: _Entity, frame: _Frame, name: str) -> PlacedRobot:
        base = _Frame(Pose2D(0.0, 0.0, 0.0), frame.z)
        parts = tuple(self._parts(entity, base, name))
        drive = entity.text("drive", "diff")
        if drive not in _DRIVES:
            raise entity.error("drive", f'drive is {drive!r}, expected "diff", "omni" or "car"')
        bounds = entity.numbers("velocity_bounds", (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -90.0, 90.0))
        length, angle = self.units.length, self.units.angle
        if "velocity_bounds" not in entity.properties:
            length, angle = 1.0, math.pi / 180.0
        heights = [z for part in parts for z in part.z] or [frame.z, frame.z]
        return PlacedRobot(
            name=name,
            pose=frame.pose,
            kinematics=_DRIVES[drive],
            footprint=self._footprint(entity, parts),
            lidars=tuple(self._lidars(entity, base)),
            parts=parts,
            z=(min(heights), max(heights)),
            wheelbase=entity.number("wheelbase", 1.0 / self.units.length) * self.units.length,
            velocity_bounds=(
                max(abs(bounds[0]), abs(bounds[1])) * length,
                max(abs(bounds[2]), abs(bounds[3])) * length,
                max(abs(bounds[6]), abs(bounds[7])) * angle,
            ),
            color=self._color(entity),
        )

    def _footprint(self, entity: _Entity, parts: tuple[Solid, ...]) -> Footprint:
        corners = [loop for part in parts if part.obstacle for loop in part.loops]
        corners = corners or [loop for part in parts for loop in part.loops]
        if not corners:
            raise entity.token.error(f"{entity.type} has no body, so nothing to collide with")
        hull = convex_hull(np.concatenate(corners))
        try:
            return Footprint(polygon=tuple((float(x), float(y)) for x, y in hull))
        except ValueError as error:
            raise entity.token.error(f"{entity.type} has no usable footprint: {error}") from error

    def _lidars(self, entity: _Entity, frame: _Frame) -> Iterator[PlacedLidar]:
        """Every sensor of every ranger on a model, in file order."""
        for child in entity.children:
            if child.type in _NO_MODELS:
                continue
            on_top = _Frame(frame.pose, frame.z + self._stack_height(entity))
            place = self._frame(child, on_top)
            if child.type == "ranger":
                ox, oy, oz, oa = child.numbers("origin", (0.0, 0.0, 0.0, 0.0))
                length = self.units.length
                shifted = _Frame(
                    compose(place.pose, Pose2D(ox * length, oy * length, oa * self.units.angle)),
                    place.z + oz * length,
                )
                for sensor in child.children:
                    if sensor.type == "sensor":
                        yield self._lidar(sensor, self._frame(sensor, shifted))
            yield from self._lidars(child, place)

    def _lidar(self, sensor: _Entity, frame: _Frame) -> PlacedLidar:
        length, angle = self.units.length, self.units.angle
        low, high = sensor.numbers("range", (0.0, 5.0 / length))
        fov = sensor.number("fov", 0.1 / angle) * angle
        samples = sensor.number("samples", 1.0)
        if not 1 <= samples <= _MOST_SAMPLES:
            raise sensor.error("samples", f"samples is {samples:g}, expected 1 to {_MOST_SAMPLES}")
        if not 0.0 < fov <= 2.0 * math.pi + 1e-6:
            raise sensor.error("fov", f"fov is {fov / angle:g}, expected more than 0 and at most one turn")
        if not 0.0 <= low < high:
            raise sensor.error("range", f"range is [{low:g} {high:g}], expected 0 <= lowest < highest")
        # Stage puts beams on both edges even of a full turn, where Lidar would leave the second out.
        half = 0.5 * min(fov, 2.0 * math.pi - 3e-6)
        single = int(samples) == 1
        lidar = Lidar(
            beams=int(samples),
            angle_min=0.0 if single else -half,
            angle_max=half,
            range_min=low * length,
            range_max=high * length,
            x=frame.pose.x,
            y=frame.pose.y,
            yaw=frame.pose.yaw,
        )
        size_z = sensor.numbers("size", (0.0, 0.0, _SENSOR_SIZE_Z / length))[2] * length
        return PlacedLidar(lidar, frame.z + 0.5 * size_z)


def _hollow_around(solid: Solid, robots: list[PlacedRobot]) -> Solid:
    """Stage draws outlines only: what holds a robot is a room to it, seen and hit from inside too."""
    centres = np.array([robot.pose[:2] for robot in robots]).reshape(-1, 2)
    if len(solid.loops) != 1 or not points_in_loop(centres, solid.loops[0]).any():
        return solid
    loop = solid.loops[0]
    return replace(solid, loops=(loop, loop[::-1].copy()), oriented=True)


def _in_cells(loop: DoubleArray, cell: float) -> DoubleArray:
    """Edges of a bitmap where Stage has them: at the lower border of the cell it draws them into."""
    along_axes = np.abs(loop - np.roll(loop, 1, axis=0)).min(axis=1).max() < 1e-9
    # Found from recordings: an edge on a border is drawn into the cell below it.
    return np.asarray(np.floor(loop / cell - 1e-9) * cell) if along_axes else loop


def _check_type(entity: _Entity) -> None:
    if entity.type in _BODIES or entity.type in _BODYLESS:
        return
    if entity.type in _OLD_TYPES:
        raise entity.token.error(
            f"{entity.type!r} is a type of old Stage files, expected {_OLD_TYPES[entity.type]}"
        )
    known = ", ".join(sorted(_BODIES | {"ranger"}))
    raise entity.token.error(
        f"unknown type {entity.type!r}, expected a define of this file or one of {known}, ..."
    )


def _name(entity: _Entity, parent: str | None, counts: dict[str, int]) -> str:
    number = counts.get(entity.type, 0)
    counts[entity.type] = number + 1
    own = f"{entity.type}:{number}"
    return entity.text("name", own if parent is None else f"{parent}.{own}")


def _boundary(
    blocks: list[tuple[list[DoubleArray], float, float]],
) -> list[tuple[list[DoubleArray], float, float]]:
    """Four thin walls along the inside of the bounding box of all blocks, 0.01 units thick."""
    corners = np.concatenate([loop for loops, _, _ in blocks for loop in loops])
    (x0, y0), (x1, y1) = corners.min(axis=0), corners.max(axis=0)
    low, high = min(b[1] for b in blocks), max(b[2] for b in blocks)
    thin = 0.01
    walls = [
        (x0, y0, x0 + thin, y1),
        (x0, y0, x1, y0 + thin),
        (x0, y1 - thin, x1, y1),
        (x1 - thin, y0, x1, y1),
    ]
    return [
        ([np.array([(a, b), (c, b), (c, d), (a, d)], dtype=np.float64)], low, high) for a, b, c, d in walls
    ]


# --- what others call -------------------------------------------------------------------------------------


def read_world_file(path: str | Path, *, stage_cells: bool = False) -> World:
    """Read a Stage ``.world`` file.

    What is visible and what is an obstacle is decided for the first robot that the file places;
    see `cut_for` for another. A file without robots keeps everything.

    Args:
        path: of the file; its includes and bitmaps are looked for from its folder.
        stage_cells: move the edges of bitmaps to where Stage's cells have them, up to one
            ``resolution`` away, for comparing with Stage; otherwise geometry is exact.

    Raises:
        WorldFileError: names file, line and what was expected.
    """
    path = Path(path)
    tokens: list[_Token] = []
    for token in _tokens_of_file(path, path.parent, (), None):
        tokens.append(token)
        if len(tokens) > _MOST_TOKENS:
            raise token.error(f"more than {_MOST_TOKENS} words; do includes multiply each other?")
    root = _Parser(tokens).parse(str(path))
    return _Builder(root, path.parent, stage_cells).build(root, path.stem)


def load_world(path: str | Path) -> World:
    """Read a world file of any kind that is known: Stage, map_server's YAML, Gazebo's SDF.

    Stage and Gazebo both call theirs ``.world``; Gazebo's begin with ``<``.

    Raises:
        WorldFileError: names file, line where there is one, and what was expected.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        return read_map_file(path)
    if path.suffix == ".sdf" or (path.suffix == ".world" and _is_xml(path)):
        return read_sdf_file(path)
    if path.suffix == ".world":
        return read_world_file(path)
    raise WorldFileError(
        f"{path}: unknown kind of world file {path.suffix!r}, expected .world, .sdf or .yaml"
    )


def _is_xml(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    except OSError:
        return False


def main_lidar(robot: PlacedRobot) -> PlacedLidar | None:
    """The lidar with the most beams, the first of equals; None for a robot without any."""
    return max(robot.lidars, key=lambda placed: placed.lidar.beams, default=None)


def cut_for(world: World, robot: PlacedRobot, lidar: PlacedLidar | None = None) -> World:
    """The world as one of its robots meets it: by its body's height and its (main) lidar's."""
    seeing = lidar or main_lidar(robot)
    height = seeing.height if seeing else None
    return cut(world, height, robot.z)


def seen_outline(robot: PlacedRobot, height: float) -> DoubleArray | None:
    """What a beam at a height sees of a robot: ``(Q, 2)`` convex hull in its base_link, or None."""
    loops = [
        loop
        for part in robot.parts
        if part.visible and part.z[0] <= height <= part.z[1]
        for loop in part.loops
    ]
    return convex_hull(np.concatenate(loops)) if loops else None


def with_static_robots(world: World, moving: frozenset[str]) -> World:
    """The world with every placed robot not named in ``moving`` standing where it is, as a solid."""
    solids = list(world.solids)
    for robot in world.robots:
        if robot.name not in moving:
            solids.extend(
                replace(part, loops=tuple(transform_points(robot.pose, loop) for loop in part.loops))
                for part in robot.parts
            )
    kept = [robot for robot in world.robots if robot.name in moving]
    still = build_world(
        world.name,
        solids,
        world.discs,
        bounds=world.bounds,
        area=world.area,
        robots=kept,
        interval=world.interval,
    )
    return cut_for(still, kept[0]) if kept else still


def robot_spec(
    robot: PlacedRobot, *, lidar: PlacedLidar | None = None, control_period: float = 0.1
) -> RobotSpec:
    """A placed robot, with its main lidar unless another is given, as the simulator and training take it.

    Raises:
        ValueError: it has no lidar, or its file asks for what no robot of its kind can do.
    """
    seeing = lidar or main_lidar(robot)
    if seeing is None:
        raise ValueError(f"robot {robot.name!r} has no ranger with a sensor")
    vx, vy, wz = robot.velocity_bounds
    omni = robot.kinematics == "omnidirectional"
    return RobotSpec(
        name=re.sub(r"\W", "_", robot.name) or "robot",
        kinematics=robot.kinematics,
        footprint=robot.footprint,
        limits=Limits(vx=vx, vy=vy if omni else 0.0, wz=wz),
        lidar=seeing.lidar,
        control_period=control_period,
        # The front wheels of Stage's car turn by up to its rotation bound.
        turning_radius=robot.wheelbase / math.tan(min(wz, 1.2)) if robot.kinematics == "car" else 0.0,
    )


def write_world_file(world: World, path: str | Path) -> None:
    """Write a world as a Stage ``.world`` file, without robots.

    Bodies become models of blocks; those with holes are cut into slabs without. Discs become
    polygons of 32 corners. Heights without end become 1 m.
    """
    lines = [
        f"# {world.name}, written by scanpilot",
        f"interval_sim {1000.0 * world.interval:.6f}".rstrip("0").rstrip("."),
        "resolution 0.02",
    ]
    for index, solid in enumerate(world.solids):
        lines += _model_lines(index, solid)
    for index, disc in enumerate(world.discs, start=len(world.solids)):
        outline = regular_polygon(disc.x, disc.y, disc.radius, 32)
        solid = Solid((outline,), disc.z, disc.obstacle, disc.visible, disc.color)
        lines += _model_lines(index, solid)
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _model_lines(index: int, solid: Solid) -> list[str]:
    corners = np.concatenate(solid.loops)
    low, high = corners.min(axis=0), corners.max(axis=0)
    x, y = 0.5 * (low + high)
    # A thin wall has no width to scale to; Stage needs some.
    width, depth = np.maximum(high - low, 1e-4)
    bottom = solid.z[0] if math.isfinite(solid.z[0]) else 0.0
    top = solid.z[1] if math.isfinite(solid.z[1]) else bottom + 1.0
    name = re.sub(r'["\n]', "_", solid.name) or f"model_{index}"
    lines = [
        f'model ( name "{name}" pose [ {x:.9f} {y:.9f} {bottom:.6f} 0 ]',
        f"  size [ {width:.9f} {depth:.9f} {top - bottom:.6f} ]",
        f'  color "{re.sub(chr(34), "", solid.color)}" obstacle_return {int(solid.obstacle)} '
        f"ranger_return {1 if solid.visible else -1}",
    ]
    for loop in solid.loops if len(solid.loops) == 1 else _slabs(solid.loops):
        points = " ".join(f"point[{k}] [ {px:.9f} {py:.9f} ]" for k, (px, py) in enumerate(loop))
        lines.append(f"  block ( points {len(loop)} {points} z [ 0 1 ] )")
    lines.append(")")
    return lines


def _slabs(loops: tuple[DoubleArray, ...]) -> list[DoubleArray]:
    """The inside of several loops as quadrilaterals between the heights of all corners."""
    edges = np.concatenate([np.hstack((loop, np.roll(loop, -1, axis=0))) for loop in loops])
    edges = np.where((edges[:, 1] > edges[:, 3])[:, None], edges[:, [2, 3, 0, 1]], edges)
    heights = np.unique(np.round(edges[:, [1, 3]], 9))
    slabs = []
    for low, high in pairwise(heights):
        x0, y0, x1, y1 = edges[(edges[:, 1] <= low + 1e-9) & (edges[:, 3] >= high - 1e-9)].T
        slope = (x1 - x0) / (y1 - y0)
        ends = np.stack((x0 + (low - y0) * slope, x0 + (high - y0) * slope), axis=1)
        ends = ends[np.argsort(ends.sum(axis=1))]
        slabs += [
            np.array([(a[0], low), (b[0], low), (b[1], high), (a[1], high)])
            for a, b in zip(ends[::2], ends[1::2], strict=False)
        ]
    return slabs
