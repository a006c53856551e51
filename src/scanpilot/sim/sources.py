"""Which world comes next: an endless seeded stream of generated worlds, or one from a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from scanpilot.sim import generate
from scanpilot.sim.world import World

Stream = Literal["training", "validation", "test"]
WorldMaker = Callable[[int], World]

_STREAMS: dict[Stream, int] = {
    "training": generate.TRAINING,
    "validation": generate.VALIDATION,
    "test": generate.TEST,
}
GENERATORS: dict[str, Callable[[int, int], World]] = {
    "clutter": generate.clutter,
    "rooms": generate.rooms,
    "corridors": generate.corridors,
    "office": generate.office,
    "maze": generate.maze,
    "cylinders": generate.cylinders,
    "crowd": generate.crowd,
}

# Worlds of one seed before those of the next begin.
_WORLDS_PER_SEED = 1_000_000


def worlds(name: str, stream: Stream, seed: int) -> WorldMaker:
    """The worlds number 0, 1, 2, ... of a generator; or a file's world, whatever the number.

    Streams of one generator share no world, nor do seeds.

    Args:
        name: a generator's name, or the path of a world file.
        stream: who they are for.
        seed: of the run.

    Raises:
        FileNotFoundError: it is neither.
        scanpilot.sim.world_file.WorldFileError: the file is not a world.
    """
    if name in GENERATORS:
        generator = GENERATORS[name]
        return lambda number: generator(seed * _WORLDS_PER_SEED + number, _STREAMS[stream])
    if not Path(name).is_file():
        near = difflib.get_close_matches(name, GENERATORS, n=1, cutoff=0.0)
        raise FileNotFoundError(f"world {name!r} is neither a file nor a generator, such as {near[0]!r}")
    from scanpilot.sim.world_file import load_world

    world = load_world(Path(name))
    return lambda number: world
