"""Gazebo worlds (SDF): what stands still in them, cut at one height.

Read are the collision shapes of models, nested and included ones too: boxes, cylinders,
spheres, capsules and extruded polylines, in any orientation. Planes (the ground) are left
out, and so, with a warning, are meshes and height maps. Models that carry a sensor or a
drive are robots and left out.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import numpy as np

from scanpilot.sim.world import Disc, Solid, World, WorldFileError, build_world, convex_hull, regular_polygon
from scanpilot.types import DoubleArray

_log = logging.getLogger(__name__)

_DEEPEST = 50
# Models that Gazebo brings along and that hold nothing to run into.
_HARMLESS = frozenset({"sun", "ground_plane"})
_ROUND = 32  # corners of a circle that is cut at a slant


# --- XML with lines ---------------------------------------------------------------------------------------


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    file: str
    line: int
    text: str = ""
    children: list[_Element] = field(default_factory=list)

    def error(self, message: str) -> WorldFileError:
        return WorldFileError(f"{self.file}:{self.line}: {message}")

    def all(self, tag: str) -> list[_Element]:
        return [child for child in self.children if child.tag == tag]

    def first(self, tag: str) -> _Element | None:
        return next((child for child in self.children if child.tag == tag), None)

    def has(self, tag: str) -> bool:
        """Whether an element of this kind stands anywhere within."""
        return any(child.tag == tag or child.has(tag) for child in self.children)

    def numbers(self, count: int) -> list[float]:
        try:
            values = [float(word) for word in self.text.split()]
        except ValueError:
            values = []
        if len(values) != count or not all(math.isfinite(v) and abs(v) < 1e6 for v in values):
            raise self.error(f"<{self.tag}> holds {self.text.strip()!r}, expected {count} number(s)")
        return values

    def required(self, tag: str) -> _Element:
        child = self.first(tag)
        if child is None:
            raise self.error(f"<{self.tag}> lacks <{tag}>")
        return child


def _parse(path: Path) -> _Element:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        # ValueError: a name with a zero byte.
        raise WorldFileError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    parser = expat.ParserCreate()
    root = _Element("", {}, str(path), 1)
    stack = [root]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise stack[-1].error(f"elements nest deeper than {_DEEPEST} levels")
        element = _Element(tag, attributes, str(path), parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def refuse(*_: object) -> None:
        raise WorldFileError(f"{path}:{parser.CurrentLineNumber}: a document type, expected plain SDF")

    def characters(text: str) -> None:
        stack[-1].text += text

    def end(_tag: str) -> None:
        stack.pop()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    # Document types can define entities that swell without end.
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise WorldFileError(f"{path}:{error.lineno}: not well-formed XML: {error}") from error
    return root


# --- poses in space ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pose:
    """A frame in space: rotation ``(3, 3)`` and position ``(3,)``."""

    rotation: DoubleArray
    position: DoubleArray

    def then(self, other: _Pose) -> _Pose:
        """``other``, given in this frame, in the frame that this one is given in."""
        return _Pose(self.rotation @ other.rotation, self.rotation @ other.position + self.position)

    def points(self, points: DoubleArray) -> DoubleArray:
        return np.asarray(points @ self.rotation.T + self.position)


_IDENTITY = _Pose(np.eye(3), np.zeros(3))


def _pose_of(element: _Element) -> _Pose:
    """The pose that an element states in its child ``<pose>``; identity when it states none."""
    pose = element.first("pose")
    if pose is None or not pose.text.strip():
        return _IDENTITY
    x, y, z, roll, pitch, yaw = pose.numbers(6)
    if pose.attributes.get("degrees", "false").lower() in ("true", "1"):
        roll, pitch, yaw = math.radians(roll), math.radians(pitch), math.radians(yaw)
    cr, sr, cp, sp = math.cos(roll), math.sin(roll), math.cos(pitch), math.sin(pitch)
    cy, sy = math.cos(yaw), math.sin(yaw)
    rotation = np.array(
        [
            (cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr),
            (sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr),
            (-sp, cp * sr, cp * cr),
        ]
    )
    return _Pose(rotation, np.array([x, y, z]))


# --- models -----------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, search: Sequence[Path], height: float) -> None:
        self.search = search
        self.height = height
        self.solids: list[Solid] = []
        self.discs: list[Disc] = []
        self.parsed: dict[Path, _Element] = {}

    def world(self, world: _Element) -> None:
        state = world.first("state")
        states = {m.attributes.get("name", ""): m for m in state.all("model")} if state else {}
        for child in world.children:
            if child.tag == "model":
                # What Gazebo saved while running stands above the model's own pose.
                saved = states.get(child.attributes.get("name", ""))
                self.model(child, _IDENTITY, _pose_of(saved) if saved else None, 0)
            elif child.tag == "include":
                self.include(child, _IDENTITY, 0)

    def include(self, include: _Element, parent: _Pose, depth: int) -> None:
        uri = include.required("uri").text.strip()
        name = uri.split("://", 1)[-1].strip("/")
        if name in _HARMLESS:
            return
        file = self._find(include, uri, name)
        if file not in self.parsed:
            self.parsed[file] = _parse(file).required("sdf")
        root = self.parsed[file]
        pose = _pose_of(include) if include.first("pose") is not None else None
        for model in root.all("model"):
            self.model(model, parent, pose, depth + 1)

    def _find(self, include: _Element, uri: str, name: str) -> Path:
        for folder in self.search:
            place = folder / name
            if place.is_file():
                return place
            for file in ("model.sdf", "model.config"):
                if (place / file).is_file():
                    return self._of_config(place / file)
        looked = ", ".join(str(folder) for folder in self.search)
        raise include.error(
            f"include {uri!r} not found in {looked} (GZ_SIM_RESOURCE_PATH and GAZEBO_MODEL_PATH add folders)"
        )

    def _of_config(self, file: Path) -> Path:
        """The SDF file that a ``model.config`` names last, which is the newest version."""
        if file.suffix == ".sdf":
            return file
        named = _parse(file).required("model").all("sdf")
        return file.parent / (named[-1].text.strip() if named else "model.sdf")

    def model(self, model: _Element, parent: _Pose, pose: _Pose | None, depth: int) -> None:
        if depth > _DEEPEST:
            raise model.error(f"models nest deeper than {_DEEPEST} levels; does one include itself?")
        name = model.attributes.get("name", "")
        if depth == 0 and (model.has("sensor") or model.has("joint")):
            _log.info("%s:%d: model %r moves or senses: left out as a robot", model.file, model.line, name)
            return
        at = parent.then(pose if pose is not None else self._pose(model, [], _IDENTITY))
        for child in model.children:
            if child.tag == "link":
                link = at.then(self._pose(child, model.children, _IDENTITY))
                for collision in child.all("collision"):
                    self.shape(collision, link.then(self._pose(collision, [], _IDENTITY)), name)
            elif child.tag == "model":
                self.model(child, at, self._pose(child, model.children, _IDENTITY), depth + 1)
            elif child.tag == "include":
                self.include(child, at, depth + 1)

    def _pose(self, element: _Element, siblings: list[_Element], fallback: _Pose, depth: int = 0) -> _Pose:
        """An element's pose in its model, through the frame it is stated relative to."""
        own = _pose_of(element)
        stated = element.first("pose")
        relative = stated.attributes.get("relative_to", stated.attributes.get("frame", "")) if stated else ""
        if not relative or relative in ("__model__", "world"):
            return own
        for sibling in siblings:
            if sibling.attributes.get("name") == relative and sibling.tag in ("link", "model", "frame"):
                if depth > _DEEPEST:
                    raise element.error(f"pose is relative to {relative!r}, which is relative to it")
                return self._pose(sibling, siblings, fallback, depth + 1).then(own)
        assert stated is not None
        raise stated.error(f"pose is relative to {relative!r}, expected a link, model or frame of this model")

    # --- shapes

    def shape(self, collision: _Element, at: _Pose, name: str) -> None:
        geometry = collision.required("geometry")
        for shape in geometry.children:
            if shape.tag == "box":
                size = np.array(_positive(shape.required("size"), 3))
                signs = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
                self._slice(at.points(0.5 * signs * size), name)
            elif shape.tag == "cylinder":
                radius = _positive(shape.required("radius"), 1)[0]
                self._cylinder(at, radius, _positive(shape.required("length"), 1)[0], name)
            elif shape.tag == "sphere":
                self._sphere(at.position, _positive(shape.required("radius"), 1)[0])
            elif shape.tag == "capsule":
                radius = _positive(shape.required("radius"), 1)[0]
                length = _positive(shape.required("length"), 1)[0]
                self._cylinder(at, radius, length, name)
                for end in (-0.5, 0.5):
                    self._sphere(at.points(np.array([[0.0, 0.0, end * length]]))[0], radius)
            elif shape.tag == "polyline":
                self._polyline(shape, at, name)
            elif shape.tag not in ("plane", "empty"):
                _log.warning("%s:%d: a %s of model %r is left out", shape.file, shape.line, shape.tag, name)

    def _cylinder(self, at: _Pose, radius: float, length: float, name: str) -> None:
        if abs(at.rotation[2, 2]) > 1.0 - 1e-9:
            x, y, z = (float(v) for v in at.position)
            if abs(z - self.height) <= 0.5 * length:
                self.discs.append(Disc(x, y, radius, z=(z - 0.5 * length, z + 0.5 * length)))
            return
        rim = regular_polygon(0.0, 0.0, radius, _ROUND)
        ends = [np.column_stack((rim, np.full(_ROUND, side * length))) for side in (-0.5, 0.5)]
        self._slice(at.points(np.concatenate(ends)), name)

    def _sphere(self, centre: DoubleArray, radius: float) -> None:
        x, y, z = (float(v) for v in centre)
        left = radius**2 - (z - self.height) ** 2
        if left > 0.0:
            self.discs.append(Disc(x, y, math.sqrt(left), z=(z - radius, z + radius)))

    def _polyline(self, shape: _Element, at: _Pose, name: str) -> None:
        """An outline extruded upwards; only upright ones can be cut to an outline again."""
        corners = np.array([point.numbers(2) for point in shape.all("point")]).reshape(-1, 2)
        top = _positive(shape.required("height"), 1)[0]
        if len(corners) < 3:
            raise shape.error(f"polyline has {len(corners)} points, expected 3 or more")
        if at.rotation[2, 2] < 1.0 - 1e-9:
            _log.warning("%s:%d: a slanted polyline of %r is left out", shape.file, shape.line, name)
            return
        z = float(at.position[2])
        if z <= self.height <= z + top:
            outline = at.points(np.column_stack((corners, np.zeros(len(corners)))))[:, :2]
            self.solids.append(Solid((outline,), z=(z, z + top), name=name))

    def _slice(self, corners: DoubleArray, name: str) -> None:
        """Cut the convex hull of ``(K, 3)`` corners at the height and keep the outline."""
        z = corners[:, 2]
        below, above = corners[z <= self.height], corners[z >= self.height]
        if not len(below) or not len(above):
            return
        rise = above[None, :, 2] - below[:, None, 2]
        t = np.where(rise > 1e-12, (self.height - below[:, None, 2]) / np.maximum(rise, 1e-12), 0.0)
        crossing = below[:, None, :2] + t[:, :, None] * (above[None, :, :2] - below[:, None, :2])
        hull = convex_hull(crossing.reshape(-1, 2))
        if len(hull) >= 3:
            self.solids.append(Solid((hull,), z=(float(z.min()), float(z.max())), name=name))


def _positive(element: _Element, count: int) -> list[float]:
    values = element.numbers(count)
    if min(values) <= 0.0:
        raise element.error(f"<{element.tag}> holds {element.text.strip()!r}, expected more than 0")
    return values


# --- what others call -------------------------------------------------------------------------------------


def read_sdf_file(path: str | Path, *, height: float = 0.2, models: Sequence[str | Path] = ()) -> World:
    """Read what stands in a Gazebo world, or in a single model, at one height.

    Args:
        path: the ``.sdf`` or ``.world`` file.
        height: metres above the ground, of the lidar.
        models: folders searched for ``model://`` includes, before ``GZ_SIM_RESOURCE_PATH``,
            ``GAZEBO_MODEL_PATH``, the file's own folder, and ``models`` in it.

    Raises:
        WorldFileError: names file, line and what was expected.
    """
    path = Path(path)
    folders = [Path(folder) for folder in models]
    for variable in ("GZ_SIM_RESOURCE_PATH", "GAZEBO_MODEL_PATH"):
        folders += [Path(folder) for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
    folders += [path.parent, path.parent / "models"]
    reader = _Reader(folders, height)
    root = _parse(path).first("sdf")
    if root is None:
        raise WorldFileError(f"{path}:1: the outermost element is not <sdf>")
    world = root.first("world")
    if world is not None:
        reader.world(world)
    else:
        for model in root.all("model"):
            reader.model(model, _IDENTITY, None, 1)
    if world is None and not root.all("model"):
        raise root.error("<sdf> holds neither <world> nor <model>")
    return build_world(path.stem, reader.solids, reader.discs)
