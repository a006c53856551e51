"""Procedural worlds from seeds.

Every generator is a function of a seed, a stream and a difficulty that returns a `World`.
Streams keep training, validation and test worlds apart: the same seed in another stream
is another world.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from scanpilot.robot import Footprint
from scanpilot.sim.bitmap import outline_loops
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.world import Disc, Solid, World, box, build_world
from scanpilot.types import BoolArray, DoubleArray

TRAINING, VALIDATION, TEST = 0, 1, 2

_WALL = 0.2
_GREY, _WOOD, _STEEL = "#555555", "#7a6a53", "#53707a"


def clutter(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """A closed arena of 11 to 13 m with turned boxes, cylinders, walls and corridors.

    Difficulty 0 is nearly empty; 0.5, for eight robots of radius 0.2 m, is such that a robot that
    drives straight at its goal arrives in about three cases of ten; 1 leaves little but detours.
    """
    return _first_connected("clutter", seed, stream, difficulty, _clutter)


def rooms(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """Rooms in a grid, joined by doors of 1.6 m (easy) to 0.8 m (hard), with furniture."""
    return _first_connected("rooms", seed, stream, difficulty, _rooms)


def corridors(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """Corridors of 2 m (easy) to 1 m (hard) between thick walls; the harder, the more dead ends."""
    return _first_connected("corridors", seed, stream, difficulty, _corridors)


def office(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """Offices with desks on both sides of a hallway; some are joined by a second door."""
    return _first_connected("office", seed, stream, difficulty, _office)


def maze(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """Thin walls in a grid of cells; at difficulty 1 a perfect maze with one way between any two."""
    return _first_connected("maze", seed, stream, difficulty, _maze)


def cylinders(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """A field of thin cylinders (radius 0.075 m), in clumps as in BARN and as dense when hard."""
    return _first_connected("cylinders", seed, stream, difficulty, _cylinders)


def crowd(seed: int, stream: int = TRAINING, difficulty: float = 0.5) -> World:
    """An open floor with a few columns, for many robots or walkers; smaller when hard."""
    return _first_connected("crowd", seed, stream, difficulty, _crowd)


_Layout = Callable[[np.random.Generator, float], tuple[list[Solid], list[Disc], float, float]]


def _first_connected(name: str, seed: int, stream: int, difficulty: float, layout: _Layout) -> World:
    """The first layout of this seed in which a robot can reach nearly all free space."""
    if not 0.0 <= difficulty <= 1.0:
        raise ValueError(f"difficulty is {difficulty}, expected 0 to 1")
    rng = np.random.default_rng([stream, seed])
    world: World | None = None
    for attempt in range(60):
        # A generator that hardly ever leaves room at this difficulty is eased until it does.
        eased = difficulty * 0.95 ** max(0, attempt - 10)
        solids, discs, width, height = layout(rng, eased)
        area = (-0.5 * width, -0.5 * height, 0.5 * width, 0.5 * height)
        walls = _arena(width, height)
        world = build_world(f"{name}-{stream}-{seed}", [*solids, *walls], discs, area=area)
        space = FreeSpace(world, Footprint(radius=0.25))
        if space.largest_share > 0.9 and space.area > 0.12 * width * height:
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

    for _ in range(rng.poisson(0.054 * difficulty * area)):
        (x, y), (length, depth) = somewhere(), rng.uniform(0.3, 1.3, 2)
        solids.append(Solid((box(x, y, length, depth, rng.uniform(0.0, math.pi)),), color=_WOOD))
    discs = [
        Disc(*somewhere(), float(rng.uniform(0.1, 0.45)), color=_STEEL)
        for _ in range(rng.poisson(0.04 * difficulty * area))
    ]
    solids.extend(_long_wall(rng, somewhere()) for _ in range(rng.poisson(5.2 * difficulty)))
    for _ in range(rng.poisson(1.95 * difficulty)):
        solids.extend(_corridor(rng, somewhere(1.5)))
    for _ in range(rng.poisson(3.35 * difficulty)):
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


# --- grids of cells: rooms, mazes, corridors --------------------------------------------------------------


@dataclass
class _Passages:
    """Which neighbouring cells of a grid are joined.

    Attributes:
        right: ``(rows, columns - 1)`` cell (r, c) with (r, c + 1).
        up: ``(rows - 1, columns)`` cell (r, c) with (r + 1, c).
    """

    right: BoolArray
    up: BoolArray

    def join(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        (r, c), (other_r, _) = min(a, b), max(a, b)
        if r == other_r:
            self.right[r, c] = True
        else:
            self.up[r, c] = True

    def loosen(self, rng: np.random.Generator, share: float) -> None:
        """Join a share of the pairs that are not joined yet."""
        self.right |= rng.random(self.right.shape) < share
        self.up |= rng.random(self.up.shape) < share


def _spanning_tree(rng: np.random.Generator, rows: int, columns: int, straightness: float) -> _Passages:
    """A random tree that joins all cells, grown by a walk that keeps its direction and backtracks."""
    passages = _Passages(np.zeros((rows, columns - 1), np.bool_), np.zeros((rows - 1, columns), np.bool_))
    at = (int(rng.integers(rows)), int(rng.integers(columns)))
    seen, trail, heading = {at}, [at], (0, 0)
    while trail:
        r, c = trail[-1]
        steps = [
            (dr, dc)
            for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))
            if 0 <= r + dr < rows and 0 <= c + dc < columns and (r + dr, c + dc) not in seen
        ]
        if not steps:
            trail.pop()
            heading = (0, 0)
            continue
        if heading not in steps or rng.random() > straightness:
            heading = steps[int(rng.integers(len(steps)))]
        after = (r + heading[0], c + heading[1])
        passages.join((r, c), after)
        seen.add(after)
        trail.append(after)
    return passages


def _grid_walls(
    passages: _Passages, width: float, height: float, gap: float | None, thickness: float
) -> list[Solid]:
    """Walls between the cells of a grid over width x height; joined cells have a gap in theirs, or none."""
    rows, columns = passages.right.shape[0], passages.up.shape[1]
    w, h = width / columns, height / rows
    walls: list[Solid] = []
    for r in range(rows):
        for c in range(columns):
            x, y = -0.5 * width + c * w, -0.5 * height + r * h
            if c < columns - 1:
                opening = (gap if gap is not None else h) if passages.right[r, c] else 0.0
                walls += _wall_with_gap(
                    (x + w, y + 0.5 * h), 0.5 * math.pi, h + thickness, opening, thickness
                )
            if r < rows - 1:
                opening = (gap if gap is not None else w) if passages.up[r, c] else 0.0
                walls += _wall_with_gap((x + 0.5 * w, y + h), 0.0, w + thickness, opening, thickness)
    return walls


def _wall_with_gap(
    centre: tuple[float, float], yaw: float, length: float, gap: float, thickness: float, shift: float = 0.0
) -> list[Solid]:
    """A wall with an opening ``shift`` off its middle."""
    if gap <= 0.0:
        return [_placed(centre, yaw, 0.0, 0.0, length, thickness)]
    left, right = 0.5 * length + shift - 0.5 * gap, 0.5 * length - shift - 0.5 * gap
    walls = []
    for size, side in ((left, -1.0), (right, 1.0)):
        if size > thickness:
            walls.append(_placed(centre, yaw, side * 0.5 * (length - size), 0.0, size, thickness))
    return walls


def _furniture(
    rng: np.random.Generator, count: int, width: float, height: float, largest: float
) -> list[Solid]:
    """Boxes anywhere in width x height."""
    furniture = []
    for _ in range(count):
        x, y = rng.uniform(-0.5 * width, 0.5 * width), rng.uniform(-0.5 * height, 0.5 * height)
        sides = rng.uniform(0.3, largest, 2)
        yaw = rng.choice([0.0, rng.uniform(0.0, math.pi)])
        furniture.append(Solid((box(float(x), float(y), sides[0], sides[1], yaw),), color=_WOOD))
    return furniture


def _rooms(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    rows, columns = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    width, height = columns * rng.uniform(3.5, 5.0), rows * rng.uniform(3.5, 5.0)
    doors = _spanning_tree(rng, rows, columns, 0.0)
    doors.loosen(rng, 0.5 * (1.0 - difficulty))
    walls = _grid_walls(doors, width, height, 1.6 - 0.8 * difficulty, 0.15)
    count = int(rng.poisson(difficulty * 1.5 * rows * columns))
    return [*walls, *_furniture(rng, count, width, height, 1.0)], [], width, height


def _maze(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    rows, columns = rng.integers(5, 8, 2)
    cell = 2.2 - 0.7 * difficulty
    passages = _spanning_tree(rng, int(rows), int(columns), 0.3)
    passages.loosen(rng, 0.6 * (1.0 - difficulty))
    width, height = float(columns * cell), float(rows * cell)
    return _grid_walls(passages, width, height, None, 0.12), [], width, height


def _corridors(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    rows, columns = (int(v) for v in rng.integers(3, 6, 2))
    passages = _spanning_tree(rng, rows, columns, 0.7)
    passages.loosen(rng, 0.35 * (1.0 - difficulty))
    filled = np.ones((2 * rows - 1, 2 * columns - 1), np.bool_)
    filled[::2, ::2] = False
    filled[::2, 1::2] = ~passages.right
    filled[1::2, ::2] = ~passages.up

    def borders(count: int) -> DoubleArray:
        """Where the stripes of corridors (even) and walls (odd) begin and end."""
        sizes = np.where(
            np.arange(count) % 2 == 0,
            (2.0 - 1.0 * difficulty) * rng.uniform(0.9, 1.2, count),
            rng.uniform(0.4, 1.2, count),
        )
        edges = np.concatenate(([0.0], np.cumsum(sizes)))
        return np.asarray(edges - 0.5 * edges[-1])

    x, y = borders(filled.shape[1]), borders(filled.shape[0])
    loops = [
        np.stack((x[loop[:, 0].astype(int)], y[loop[:, 1].astype(int)]), axis=1)
        for loop in outline_loops(filled)
    ]
    return [Solid(tuple(loops), color=_GREY, oriented=True)], [], float(2 * x[-1]), float(2 * y[-1])


def _office(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    hall, depth = 2.4 - 0.8 * difficulty, float(rng.uniform(3.0, 4.5))
    count = int(rng.integers(3, 5))
    width, height = count * float(rng.uniform(3.0, 4.0)), hall + 2.0 * depth
    room, door = width / count, 1.4 - 0.5 * difficulty
    solids: list[Solid] = []
    for side in (-1.0, 1.0):
        for k in range(count):
            x = -0.5 * width + (k + 0.5) * room
            shift = float(rng.uniform(-0.25, 0.25)) * (room - door)
            solids += _wall_with_gap((x, side * 0.5 * hall), 0.0, room + 0.15, door, 0.15, shift)
            y = side * (0.5 * hall + 0.5 * depth)
            if k < count - 1:
                joined = door if rng.random() < 0.3 else 0.0
                solids += _wall_with_gap((x + 0.5 * room, y), 0.5 * math.pi, depth, joined, 0.15)
            for _ in range(int(rng.poisson(0.5 + 1.5 * difficulty))):
                desk = rng.uniform((0.6, 0.5), (1.4, 0.8))
                where = rng.uniform((-0.35 * room, -0.35 * depth), (0.35 * room, 0.35 * depth))
                yaw = float(rng.choice([0.0, 0.5 * math.pi]))
                desk_at = (x + float(where[0]), y + float(where[1]))
                solids.append(Solid((box(*desk_at, desk[0], desk[1], yaw),), color=_WOOD))
    return solids, [], width, height


def _cylinders(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    width, height = (float(v) for v in rng.uniform(7.0, 10.0, 2))
    cell = 0.15
    filled = rng.random((int(height / cell), int(width / cell))) < 0.06 + 0.13 * difficulty
    around = np.ones((3, 3), dtype=np.int64)
    # A cellular automaton, as BARN's: lone cells vanish, crowded places fill.
    for _ in range(int(rng.integers(1, 4))):
        neighbours = ndimage.convolve(filled.astype(np.int64), around, mode="constant") - filled
        filled = (filled & (neighbours > 1)) | (neighbours >= 5)
    centres = (np.argwhere(filled)[:, ::-1] + 0.5) * cell - (0.5 * width, 0.5 * height)
    return [], [Disc(float(x), float(y), 0.075, color=_STEEL) for x, y in centres], width, height


def _crowd(rng: np.random.Generator, difficulty: float) -> tuple[list[Solid], list[Disc], float, float]:
    width, height = rng.uniform(8.0, 10.0, 2) * (1.4 - 0.8 * difficulty)
    discs = [
        Disc(
            float(rng.uniform(-0.4 * width, 0.4 * width)),
            float(rng.uniform(-0.4 * height, 0.4 * height)),
            float(rng.uniform(0.15, 0.3)),
            color=_STEEL,
        )
        for _ in range(rng.poisson(3.0 * difficulty))
    ]
    return [], discs, float(width), float(height)
