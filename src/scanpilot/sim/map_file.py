"""Maps of ROS's map_server: a YAML file and an image of occupancy, as a world.

The meaning of pixels is map_server's: the mean of the colour channels, ``negate``, the
two thresholds, and the three modes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scanpilot.geometry import transform_points
from scanpilot.sim.bitmap import outline_loops, read_channels
from scanpilot.sim.world import Solid, World, WorldFileError, build_world
from scanpilot.types import BoolArray, Pose2D

_MODES = ("trinary", "scale", "raw")


class _Map:
    """The YAML's keys, with errors that name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, UnicodeDecodeError) as error:
            raise WorldFileError(f"{path}: cannot be read: {error}") from error
        except yaml.YAMLError as error:
            raise WorldFileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(root, yaml.MappingNode):
            raise WorldFileError(f"{path}:1: expected a mapping with image, resolution and origin")
        self.nodes = {str(key.value): value for key, value in root.value}

    def error(self, key: str, message: str) -> WorldFileError:
        node = self.nodes.get(key)
        line = f":{node.start_mark.line + 1}" if node is not None else ""
        return WorldFileError(f"{self.path}{line}: {message}")

    def value(self, key: str, default: Any = None) -> Any:
        if key not in self.nodes:
            if default is None:
                raise self.error(key, f"lacks {key}")
            return default
        try:
            return yaml.SafeLoader("").construct_document(self.nodes[key])
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise self.error(key, f"{key} cannot be read: {' '.join(str(error).split())}") from error

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if isinstance(value, str):
            # YAML 1.1 takes 1e-2 for text.
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if not _is_finite(value):
            raise self.error(key, f"{key} is {self.nodes[key].value!r}, expected a number")
        return float(value)


def read_map_file(path: str | Path, *, unknown_is_obstacle: bool = True) -> World:
    """Read a map_server map.

    Args:
        path: the YAML file; its image is looked for from its folder.
        unknown_is_obstacle: whether cells between the two thresholds are solid. A map seldom has
            walls all around its free space; what was never seen is no place for a robot.

    Raises:
        WorldFileError: names the file, the line where there is one, and what was expected.
    """
    keys = _Map(Path(path))
    resolution = keys.number("resolution")
    if not 0.0 < resolution < 1e4:
        raise keys.error("resolution", f"resolution is {resolution} m, expected more than 0")
    occupied = _occupied(keys, unknown_is_obstacle)
    origin = keys.value("origin")
    if not isinstance(origin, list) or len(origin) < 2 or not all(_is_finite(v) for v in origin):
        raise keys.error("origin", "origin is not a list of x, y and yaw")
    pose = Pose2D(float(origin[0]), float(origin[1]), float(origin[2]) if len(origin) > 2 else 0.0)
    loops = tuple(transform_points(pose, loop * resolution) for loop in outline_loops(occupied))
    solids = [Solid(loops, name=Path(path).stem, oriented=True)] if loops else []
    rows, columns = occupied.shape
    corners = np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)]) * resolution
    corners = transform_points(pose, corners)
    low, high = corners.min(axis=0), corners.max(axis=0)
    bounds = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
    return build_world(Path(path).stem, solids, bounds=bounds)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _occupied(keys: _Map, unknown_is_obstacle: bool) -> BoolArray:
    """Cells that are solid, row 0 lowest."""
    mode = keys.value("mode", "trinary")
    if mode not in _MODES:
        raise keys.error("mode", f"mode is {mode!r}, expected one of {', '.join(_MODES)}")
    name = keys.value("image")
    image = keys.path.parent / str(name)
    if not image.is_file():
        raise keys.error("image", f"image {str(name)!r} not found: no file {image}")
    try:
        channels, alpha = read_channels(image)
    except (OSError, ValueError) as error:
        raise keys.error("image", f"image {image} cannot be read: {error}") from error
    occupied_above = _share(keys, "occupied_thresh", 0.65)
    free_below = _share(keys, "free_thresh", 0.25)
    if free_below > occupied_above:
        raise keys.error("free_thresh", f"free_thresh {free_below} exceeds occupied_thresh {occupied_above}")
    grey = channels.mean(axis=2)
    if mode == "raw":
        # The pixel is the occupancy in per cent; what exceeds 100 is unknown.
        unknown = grey > 100.0
        occupancy = grey / 100.0
    else:
        occupancy = grey / 255.0 if keys.number("negate", 0.0) else 1.0 - grey / 255.0
        unknown = (alpha < 255.0) if mode == "scale" else np.zeros(grey.shape, dtype=np.bool_)
    full = (occupancy > occupied_above) & ~unknown
    if unknown_is_obstacle:
        full |= unknown | (occupancy >= free_below)
    return np.asarray(full[::-1], dtype=np.bool_)


def _share(keys: _Map, key: str, default: float) -> float:
    value = keys.number(key, default)
    if not 0.0 <= value <= 1.0:
        raise keys.error(key, f"{key} is {value}, expected 0 to 1")
    return value
