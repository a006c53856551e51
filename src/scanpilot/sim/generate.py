"""Procedural worlds from seeds.

Every generator is a function of a seed, a stream and a difficulty that returns a `World`.
Streams keep training, validation and test worlds apart: the same seed in another stream
is another world.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scanpilot.robot import Footprint
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.world import Disc, Solid, World, box, build_world
from scanpilot.types import DoubleArray

TRAINING, VALIDATION, TEST = 0, 1, 2

_WALL = 0.2
_GREY, _WOOD, _STEEL = "#555555", "#7a6a53", "#53707a"


def clutter(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """A closed arena of 11 to 13 m with turned boxes, cylinders, walls and corridors.

    Difficulty 0 is nearly empty; 0.5, for eight robots of radius 0.2 m, is such that a robot that
    drives straight at its goal arrives in about three cases of ten; 1 leaves little but detours.
    """
    return _first_connected("clutter", seed, stream, difficulty, _clutter)


_Layout = Callable[[np.random.Generator, float], tuple[list[Solid], list[Disc], float, float]]


def _first_connected(name: str, seed: int, stream: int, difficulty: float, layout: _Layout) -> World:
    """The first layout of this seed in which a robot can reach nearly all free space."""
    if not 0.0 <= difficulty <= 1.0:
        raise ValueError(f"difficulty is {difficulty}, expected 0 to 1")
    rng = np.random.default_rng([stream, seed])
    world: World | None = None
    for _ in range(20):
        solids, discs, width, height = layout(rng, difficulty)
        area = (-0.5 * width, -0.5 * height, 0.5 * width, 0.5 * height)
        walls = _arena(width, height)
        world = build_world(f"{name}-{stream}-{seed}", [*solids, *walls], discs, area=area)
        space = FreeSpace(world, Footprint(radius=0.25))
        if space.largest_share > 0.9 and space.area > 0.2 * width * height:
            break
    assert world is not None
    return world


def _arena(width: float, height: float) -> list[Solid]:
    """Walls around a rectangle about the origin."""
    x, y = 0.5 * (width + _WALL), 0.5 * (height + _WALL)
    return [
        Solid((box(0.0, y, width + 2 * _WALL, _WALL),), color=_GREY),
        Solid((box(0.0, -y, width + 2 * _WALL, _WALL),), color=_GREY),
        Solid((box(x, 0.0, _WALL, height),), color=_GREY),
        Solid((box(-x, 0.0, _WALL, height),), color=_GREY),
    ]


def _clutter(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    width, height = rng.uniform(11.0, 13.0, 2)
    area = width * height
    solids: list[Solid] = []

    def somewhere(margin: float = 0.3) -> tuple[float, float]:
        return (
            float(rng.uniform(-0.5 * width + margin, 0.5 * width - margin)),
            float(rng.uniform(-0.5 * height + margin, 0.5 * height - margin)),
        )

    for _ in range(rng.poisson(0.05 * difficulty * area)):
        (x, y), (length, depth) = somewhere(), rng.uniform(0.3, 1.3, 2)
        solids.append(Solid((box(x, y, length, depth, rng.uniform(0.0, math.pi)),), color=_WOOD))
    discs = [
        Disc(*somewhere(), float(rng.uniform(0.1, 0.45)), color=_STEEL)
        for _ in range(rng.poisson(0.037 * difficulty * area))
    ]
    solids.extend(_long_wall(rng, somewhere()) for _ in range(rng.poisson(4.8 * difficulty)))
    for _ in range(rng.poisson(1.8 * difficulty)):
        solids.extend(_corridor(rng, somewhere(1.5)))
    for _ in range(rng.poisson(3.1 * difficulty)):
        solids.extend(_pocket(rng, somewhere(1.5)))
    return solids, discs, width, height


def _long_wall(rng: np.random.Generator, centre: tuple[float, float]) -> Solid:
    yaw = rng.choice([0.0, 0.5 * math.pi, rng.uniform(0.0, math.pi)])
    return Solid((box(*centre, rng.uniform(1.5, 4.0), 0.15, yaw),), color=_GREY)


def _corridor(rng: np.random.Generator, centre: tuple[float, float]) -> list[Solid]:
    """Two parallel walls that leave room for one robot, sometimes two."""
    length, gap, yaw = rng.uniform(2.0, 4.5), rng.uniform(0.8, 1.4), rng.uniform(0.0, math.pi)
    return [
        _placed(centre, yaw, 0.0, 0.5 * gap + 0.075, length, 0.15),
        _placed(centre, yaw, 0.0, -0.5 * gap - 0.075, length, 0.15),
    ]


def _pocket(rng: np.random.Generator, centre: tuple[float, float]) -> list[Solid]:
    """Three walls around a dead end, open to one side."""
    depth, mouth, yaw = rng.uniform(1.0, 2.5), rng.uniform(1.2, 2.8), rng.uniform(-math.pi, math.pi)
    return [
        _placed(centre, yaw, 0.5 * depth, 0.0, 0.15, mouth + 0.3),
        _placed(centre, yaw, 0.0, 0.5 * mouth + 0.075, depth + 0.15, 0.15),
        _placed(centre, yaw, 0.0, -0.5 * mouth - 0.075, depth + 0.15, 0.15),
    ]


def _placed(
    centre: tuple[float, float], yaw: float, x: float, y: float, width: float, height: float
) -> Solid:
    """A box at (x, y) of a frame at ``centre`` turned by ``yaw``."""
    c, s = math.cos(yaw), math.sin(yaw)
    corners: DoubleArray = box(centre[0] + c * x - s * y, centre[1] + s * x + c * y, width, height, yaw)
    return Solid((corners,), color=_GREY)
