"""Which world comes next: an endless seeded stream of generated worlds, or one from a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Literal

from scanpilot import resources
from scanpilot.sim import generate
from scanpilot.sim.world import World
from scanpilot.sim.world_file import cut_for, load_world
from scanpilot.types import InvalidInput

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
        name: a generator's name, a shipped world's, or the path of a world file.
        stream: who they are for.
        seed: of the run.

    Raises:
        FileNotFoundError: it is none of these.
        scanpilot.sim.world.WorldFileError: the file is not a world.
    """
    if name in GENERATORS:
        generator = GENERATORS[name]
        return lambda number: generator(seed * _WORLDS_PER_SEED + number, _STREAMS[stream])
    world = cut_for_its_robots(_from_file(name))
    return lambda number: world


def named_world(name: str) -> World:
    """One world by its name: ``clutter:7`` is a generator's of that seed, else a shipped one or a file.

    The same name is the same world in every command and launch file; training never sees a generated one.

    Raises:
        scanpilot.types.InvalidInput: a generator without a seed that is a whole number.
        FileNotFoundError: it is no such name.
        scanpilot.sim.world.WorldFileError: the file is not a world.
    """
    generator, colon, seed = name.partition(":")
    if generator in GENERATORS:
        if not (colon and seed.isascii() and seed.isdigit()):
            raise InvalidInput(f"world {name!r}: expected a seed, such as {generator}:7")
        return worlds(generator, "test", int(seed))(0)
    return _from_file(name)


def cut_for_its_robots(world: World) -> World:
    """As high and low as the robots it places: what they neither see nor hit is not there."""
    return cut_for(world, world.robots[0]) if world.robots else world


def _from_file(name: str) -> World:
    try:
        path = resources.find("world", name)
    except FileNotFoundError as error:
        near = difflib.get_close_matches(name.partition(":")[0], GENERATORS, n=1, cutoff=0.0)
        raise FileNotFoundError(f"{error}; generated worlds are called such as '{near[0]}:7'") from error
    return load_world(path)
