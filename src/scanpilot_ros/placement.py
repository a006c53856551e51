"""Which robots stand where in a world: names, starts and what they are. Free of ROS.

The simulator node, and whoever starts policy nodes to go with it, get the same answer from here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from scanpilot import resources
from scanpilot.configuration import ConfigurationError
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.sim import sources
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.world import World, WorldFileError
from scanpilot.sim.world_file import robot_spec
from scanpilot.types import InvalidInput, Pose2D


@dataclass(frozen=True)
class Start:
    """A robot's name and where it starts, in the world frame."""

    name: str
    pose: Pose2D


@dataclass(frozen=True)
class Scene:
    """A world with equal robots in it.

    Attributes:
        world: what stands there.
        robot: what every robot is.
        starts: one for each robot.
    """

    world: World
    robot: RobotSpec
    starts: tuple[Start, ...]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What each robot's topics and frames begin with: ``<name>/``, or nothing for a single robot."""
        if len(self.starts) == 1:
            return ("",)
        return tuple(f"{start.name}/" for start in self.starts)


def make_scene(world: str, robot: str, robots: int, seed: int) -> Scene:
    """Read or generate a world and place robots in it.

    Args:
        world: a world file, a shipped world's name, or a generated world such as ``clutter:7``.
        robot: a robot's YAML file or a shipped robot's name; empty: as the world describes them.
        robots: how many; 0: those that the world places. More than it places are all placed anew,
            at sampled free starts.
        seed: of sampled starts.

    Raises:
        scanpilot.types.InvalidInput: names the file, with the line where there is one, and the reason.
    """
    try:
        place = _world(world)
        spec = load_robot(resources.find("robot", robot)) if robot else _robot_of(place)
    except (WorldFileError, ConfigurationError, OSError) as error:
        raise InvalidInput(str(error)) from error
    return Scene(place, spec, _starts(place, spec, robots, seed))


def _world(name: str) -> World:
    if not name:
        raise InvalidInput("no world was named: give a world file, or a generated world such as clutter:7")
    return sources.cut_for_its_robots(sources.named_world(name))


def _starts(world: World, robot: RobotSpec, count: int, seed: int) -> tuple[Start, ...]:
    if 0 < (count or len(world.robots)) <= len(world.robots):
        return tuple(Start(_topic_name(r.name), r.pose) for r in world.robots[: count or None])
    if count == 0:
        raise InvalidInput(f"world {world.name!r} places no robots: say how many there are to be")
    space = FreeSpace(world, robot.footprint, turning_radius=robot.turning_radius)
    rng = np.random.default_rng(seed)
    poses = np.zeros((0, 3))
    try:
        for _ in range(count):
            start, _goal = space.sample(rng, taken=poses)
            poses = np.concatenate((poses, start[None]))
    except NoRoom as error:
        raise InvalidInput(f"{len(poses)} of {count} robots fit: {error}") from error
    return tuple(Start(f"robot_{i}", Pose2D(*map(float, pose))) for i, pose in enumerate(poses))


def _topic_name(name: str) -> str:
    """A model's name as part of a topic name."""
    clean = re.sub(r"\W", "_", name)
    return f"robot_{clean}" if clean[:1].isdigit() else clean


def _robot_of(world: World) -> RobotSpec:
    if not world.robots:
        raise InvalidInput(f"world {world.name!r} describes no robot: name one, such as generic_diff")
    try:
        kinds = {replace(robot_spec(placed), name="simulated") for placed in world.robots}
    except ValueError as error:
        raise InvalidInput(f"{error}: name a robot, such as generic_diff") from error
    if len(kinds) > 1:
        raise InvalidInput(f"world {world.name!r} places robots that differ: name one robot for all")
    return kinds.pop()
