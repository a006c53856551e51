"""The BARN benchmark (Perille et al. 2020; the challenge's metric since 2024) in the embedded simulator.

Worlds, start, goal, time limit and metric are the challenge's; the simulator is not its Gazebo: motion
has no slip and sensors no noise, so that scores stand beside the challenge's table, not in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scanpilot.evaluation.episodes import Act, Episode, run_episodes
from scanpilot.evaluation.guarded import Safety
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.observation import ObservationSpec
from scanpilot.robot import Footprint, RobotSpec
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.world import Disc, World, WorldFileError, build_world
from scanpilot.sim.world_file import load_world
from scanpilot.task import TaskConfig
from scanpilot.types import DoubleArray, InvalidInput

START = (-2.25, 3.0, 1.57)
GOAL = (-2.25, 13.0, 1.57)
GOAL_RADIUS = 1.0
TIME_LIMIT = 100.0
# The speed that the challenge calls optimal, m/s.
SPEED = 2.0
JACKAL = Footprint(polygon=((0.254, -0.215), (0.254, 0.215), (-0.254, 0.215), (-0.254, -0.215)))

_RADIUS = 0.075
_BATCH = 50


def score(success: bool, path_length: float, seconds: float) -> float:
    """The challenge's metric of one run: ``success * OT / clip(AT, 2 OT, 8 OT)``, at most 0.5.

    Args:
        success: reached the goal in time without contact.
        path_length: of the reference path, metres; OT is its time at 2 m/s.
        seconds: AT, that the run took.
    """
    optimal = path_length / SPEED
    return optimal / min(max(seconds, 2.0 * optimal), 8.0 * optimal) if success else 0.0


def scores(episodes: Sequence[Episode]) -> DoubleArray:
    """`score` of episodes of `BarnSuite`, whose ``shortest`` is the reference path's length."""
    return np.array([score(e.outcome == "success", e.shortest, e.seconds) for e in episodes])


@dataclass(frozen=True, eq=False)
class BarnWorld:
    """A world and the length of its reference path from start to goal, metres."""

    world: World
    path_length: float


@dataclass(frozen=True, eq=False)
class BarnSuite:
    """BARN's worlds, one episode in each, the robot alone from the same start to the same goal.

    Attributes:
        worlds: see `load`.
        source: where they came from.
        reference: where the lengths of reference paths came from.
        safety: guard and recovery that the robot drives with; None: neither.
    """

    worlds: tuple[BarnWorld, ...]
    source: str
    reference: str
    name: str = "barn"
    version: int = 1
    about: str = "BARN's cylinder fields, official start, goal and metric; not Gazebo"
    safety: Safety | None = None

    def batches(self, episodes: int) -> list[tuple[int, int]]:
        """Ranges of worlds.

        Raises:
            InvalidInput: more episodes than worlds; a second run would be the first one again.
        """
        if episodes > len(self.worlds):
            raise InvalidInput(
                f"--episodes {episodes}: {self.source} has {len(self.worlds)} worlds, and without noise a "
                "second run in one is the first one again"
            )
        return [(first, min(first + _BATCH, episodes)) for first in range(0, episodes, _BATCH)]

    def drive(
        self, batch: tuple[int, int], act: Act, robot: RobotSpec, observation: ObservationSpec, seed: int
    ) -> list[Episode]:
        """Drive through a range of worlds."""
        own = self.worlds[batch[0] : batch[1]]
        task = TaskConfig(goal_radius=GOAL_RADIUS, time_limit=round(TIME_LIMIT / robot.control_period))
        fleet = SimulatedFleet(
            lambda number: own[number].world,
            robot,
            observation,
            task,
            FleetConfig(worlds=len(own), robots_per_world=1, world_lifetime=0),
            seed,
            lambda _: (np.array(START), np.array(GOAL)),
        )
        episodes = run_episodes(fleet, act, len(own), safety=self.safety)
        return [
            replace(episode, shortest=known.path_length) for episode, known in zip(episodes, own, strict=True)
        ]


def differences(robot: RobotSpec) -> list[str]:
    """In what a robot is not the challenge's Jackal; empty where it is, and scores then compare."""
    lidar, corners = robot.lidar, robot.footprint.polygon
    size = None if corners is None else np.ptp(np.array(corners), axis=0)
    fov = math.degrees(lidar.angle_max - lidar.angle_min)
    checks = (
        (robot.kinematics == "differential", f"{robot.kinematics}, not differential"),
        (
            size is not None and np.allclose(size, (0.508, 0.430), atol=0.005),
            "footprint is not 0.508 m by 0.430 m",
        ),
        (robot.limits.vx == SPEED, f"{robot.limits.vx:g} m/s, not 2 m/s"),
        (
            lidar.beams == 720 and abs(fov - 270.0) < 1.0 and lidar.range_max == 30.0,
            f"lidar of {lidar.beams} beams over {fov:.0f} degrees to {lidar.range_max:g} m, "
            "not 720 over 270 to 30",
        ),
    )
    return [text for same, text in checks if not same]


def load(path: Path) -> BarnSuite:
    """BARN's worlds from a folder of its SDF files, or from an ``.npz`` of their cylinders.

    A folder may be the data set's root: worlds are looked for in it and its ``world_files``, reference
    paths in its ``path_files``. Without those, our own shortest path stands in.

    Raises:
        FileNotFoundError: there is no such file or folder.
        scanpilot.sim.world.WorldFileError: it holds no worlds, or broken ones.
    """
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no folder of BARN's worlds (world_0.world, ...), and no .npz")
    return _from_arrays(path)


def _from_arrays(path: Path) -> BarnSuite:
    try:
        with np.load(path, allow_pickle=False) as file:
            numbers = file["world_index"]
            discs, disc_at = file["cylinder_centres"].astype(np.float64), file["cylinder_offsets"]
            paths, path_at = file["reference_paths"].astype(np.float64), file["path_offsets"]
    except (OSError, ValueError, KeyError) as error:
        raise WorldFileError(f"{path}: not an array file of BARN worlds: {error}") from error
    worlds = [
        BarnWorld(
            _world(f"barn-{number}", discs[disc_at[i] : disc_at[i + 1]]),
            _length(paths[path_at[i] : path_at[i + 1]]),
        )
        for i, number in enumerate(numbers)
    ]
    return BarnSuite(tuple(worlds), str(path), "reference paths of the data set")


def _from_folder(folder: Path) -> BarnSuite:
    files = {
        int(match.group(1)): file
        for where in (folder / "world_files", folder)
        for file in sorted(where.glob("*"))
        if (match := re.fullmatch(r"(?:barn|world)_(\d+)\.(?:world|sdf)", file.name))
    }
    if not files:
        raise WorldFileError(f"{folder}: holds no files named world_0.world, world_1.world, ...")
    found, given = [], 0
    for number, file in sorted(files.items()):
        read = load_world(file)
        world = _grown(read, f"barn-{number}")
        reference = next(
            (p for p in (folder / d / f"path_{number}.npy" for d in ("path_files", ".")) if p.is_file()), None
        )
        given += reference is not None
        length = _length(_read_path(reference)) if reference else _own_length(world)
        found.append(BarnWorld(world, length))
    told = "reference paths of the data set" if given == len(found) else "our own shortest paths"
    if 0 < given < len(found):
        told = f"reference paths of the data set for {given} worlds, our own shortest paths for the others"
    return BarnSuite(tuple(found), str(folder), told)


def _world(name: str, centres: DoubleArray) -> World:
    discs = [Disc(float(x), float(y), _RADIUS, color="#53707a") for x, y in centres]
    return _grown(build_world(name, (), discs), name)


def _grown(world: World, name: str) -> World:
    """With room around start and goal; the goal lies beyond the last cylinder."""
    x0, y0, x1, _ = world.bounds
    bounds = (min(x0, START[0] - 2.0), min(y0, START[1] - 2.0), max(x1, GOAL[0] + 2.0), GOAL[1] + 1.5)
    return build_world(name, world.solids, world.discs, bounds=bounds, area=bounds)


def _read_path(path: Path) -> DoubleArray:
    """A path of the data set: from the cells of its grid to metres, start and goal added."""
    try:
        cells = np.load(path, allow_pickle=False).astype(np.float64).reshape(-1, 2)
    except (OSError, ValueError) as error:
        raise WorldFileError(f"{path}: not a path of BARN: {error}") from error
    # As the challenge's own run.py: column 30 of the grid is at x = -0.075, row 0 a radius beyond y = 5.
    metres = cells * (2.0 * _RADIUS) + (-_RADIUS - 60.0 * _RADIUS, _RADIUS + 5.0)
    return np.concatenate((np.array([START[:2]]), metres, np.array([GOAL[:2]])))


def _length(path: DoubleArray) -> float:
    return float(np.hypot(*np.diff(path, axis=0).T).sum())


def _own_length(world: World) -> float:
    length = FreeSpace(world, Footprint(radius=JACKAL.inscribed_radius)).shortest_path_length(
        np.array(START), np.array(GOAL)
    )
    if not math.isfinite(length):
        raise WorldFileError(f"{world.name}: no way from BARN's start to its goal, and no reference path")
    return length
