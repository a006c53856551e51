"""How many robot-steps a second the simulator, or a peer on the same scene, makes.

A robot-step is one robot advanced by one period with everything in it: motion, contacts
with the world and with the others, and its scan with the others in it.

What runs side by side is measured in turns, a window each, and of the windows the median
counts: work that others do on the machine then slows all of them alike. Which sizes are
run, and what is told of them, is `benchmark`'s business.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.peers import Peer
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import World
from scanpilot.types import BoolArray, DoubleArray

PERIOD = 0.1
# Of each case so many are taken, the shortest so long (in seconds).
_WINDOWS = 5
_SHORTEST = 0.02


@dataclass(frozen=True)
class Throughput:
    """One row of the benchmark.

    Attributes:
        simulator: name and, of others, version.
        world: name of the first one.
        size: of where its robots are, metres.
        segments, circles: what stands in it.
        robots, worlds, beams, threads: what was run; robots of all worlds, beams of one robot.
        robot_steps_per_s, beams_per_s: whole steps, wall time.
        scans_per_s: robots scanned, without motion and contacts; None where that cannot be told apart.
        cpu_us_per_robot_step: CPU time of all threads, which other work on the machine disturbs less.
    """

    simulator: str
    world: str
    size: tuple[float, float]
    segments: int
    circles: int
    robots: int
    worlds: int
    beams: int
    threads: int
    robot_steps_per_s: float
    beams_per_s: float
    scans_per_s: float | None
    cpu_us_per_robot_step: float


def benchmark_robot(beams: int, range_max: float = 10.0) -> RobotSpec:
    """The differential robot that all rows are measured with; its beams go all round, evenly."""
    half = math.pi * (1.0 - 1.0 / beams)
    return RobotSpec(
        name="benchmark",
        kinematics="differential",
        footprint=Footprint(radius=0.2),
        limits=Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0),
        lidar=Lidar(
            beams=beams, angle_min=-half if beams > 1 else 0.0, angle_max=max(half, 0.1), range_max=range_max
        ),
        control_period=PERIOD,
    )


class Driving:
    """Robots of one simulator that drive about at random; those that touch something turn elsewhere.

    Args:
        simulator: ours, or a peer that `scene` says the rest of.
        scene: ours, whose robots a peer has too.
        threads: for the row.
        seed: of the courses.
    """

    def __init__(
        self, simulator: Simulator | Peer, scene: Simulator, threads: int = 1, seed: int = 0
    ) -> None:
        self._simulator, self._scene, self._threads = simulator, scene, threads
        self._rng = np.random.default_rng(seed)
        self._commands = np.zeros((scene.num_robots, 3))
        self._turn(np.ones(scene.num_robots, dtype=np.bool_))
        self._windows: list[tuple[float, float, float]] = []
        self._step()  # what is compiled or set up at first is not measured

    def window(self, seconds: float) -> float:
        """Drive for a while, one step at least; returns robot-steps a second."""
        steps, moving, scanning = 0, 0.0, 0.0
        cpu = time.process_time()
        while moving + scanning < max(seconds, _SHORTEST):
            for_motion, for_scans = self._step()
            steps, moving, scanning = steps + 1, moving + for_motion, scanning + for_scans
        cpu = time.process_time() - cpu
        made = steps * self._scene.num_robots
        rate = made / (moving + scanning)
        scans = made / scanning if scanning else self._peer_scans(0.3 * seconds)
        self._windows.append((rate, scans, 1e6 * cpu / made))
        return rate

    @property
    def result(self) -> Throughput:
        """The median of the windows."""
        steps, scans, cpu = (float(v) for v in np.median(self._windows, axis=0))
        world, beams = self._scene.worlds[0], self._scene.robot.lidar.beams
        return Throughput(
            simulator="scanpilot" if isinstance(self._simulator, Simulator) else self._simulator.name,
            world=world.name,
            size=(world.area[2] - world.area[0], world.area[3] - world.area[1]),
            segments=len(world.segments),
            circles=len(world.circles),
            robots=self._scene.num_robots,
            worlds=len(self._scene.worlds),
            beams=beams,
            threads=self._threads,
            robot_steps_per_s=steps,
            beams_per_s=steps * beams,
            scans_per_s=None if math.isnan(scans) else scans,
            cpu_us_per_robot_step=cpu,
        )

    def _step(self) -> tuple[float, float]:
        """Seconds for motion and contacts, and for scans; a peer does both in the first."""
        turning: BoolArray = self._rng.random(len(self._commands)) < 0.02
        begun = time.perf_counter()
        if isinstance(self._simulator, Simulator):
            turning |= self._simulator.step(self._commands, PERIOD)
            moved = time.perf_counter()
            self._simulator.scan()
        else:
            self._simulator.step(self._commands, PERIOD)
            moved = time.perf_counter()
        done = time.perf_counter() if isinstance(self._simulator, Simulator) else moved
        self._turn(turning)
        return moved - begun, done - moved

    def _turn(self, where: BoolArray) -> None:
        count, limits = int(where.sum()), self._scene.robot.limits
        self._commands[where, 0] = self._rng.uniform(-0.3, 1.0, count) * limits.vx
        self._commands[where, 2] = self._rng.uniform(-1.0, 1.0, count) * limits.wz

    def _peer_scans(self, seconds: float) -> float:
        """Scans a second of a peer that can be asked for them alone."""
        rescan = None if isinstance(self._simulator, Simulator) else self._simulator.rescan
        if rescan is None:
            return math.nan
        begun, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begun < max(seconds, _SHORTEST):
            rescan()
            count += 1
        return count * self._scene.num_robots / (time.perf_counter() - begun)


def in_turns(cases: Sequence[Driving], seconds: float) -> list[Throughput]:
    """Measure each for about so many seconds, alternately."""
    for _ in range(_WINDOWS):
        for case in cases:
            case.window(seconds / _WINDOWS)
    return [case.result for case in cases]


def in_processes(
    count: int, worlds: Sequence[World], robots_per_world: int, robot: RobotSpec, seconds: float
) -> tuple[float, float]:
    """Robot-steps a second of one process, and of several at once that each have all these worlds."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        arguments = (theirs, worlds, robots_per_world, robot, number)
        processes.append(context.Process(target=_serve_windows, args=arguments, daemon=True))
        processes[-1].start()
        pipes.append(ours)

    def windows(of: Sequence[Connection]) -> float:
        for pipe in of:
            pipe.send(seconds / _WINDOWS)
        return float(sum(pipe.recv() for pipe in of))

    for pipe in pipes:
        pipe.recv()
    rates = [(windows(pipes[:1]), windows(pipes)) for _ in range(_WINDOWS)]
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    alone, together = (float(v) for v in np.median(rates, axis=0))
    return alone, together


def _serve_windows(
    pipe: Connection, worlds: Sequence[World], robots_per_world: int, robot: RobotSpec, seed: int
) -> None:
    simulator = scene(worlds, robots_per_world, robot, seed=seed)
    case = Driving(simulator, simulator)
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        pipe.send(case.window(seconds))


def machine_scaling(threads: int) -> float:
    """How much faster so many threads are than one at hashing, which needs nothing but a core each.

    What the machine has to give at the moment, to judge other ratios by.
    """
    data = bytes(64 << 20)

    def seconds(workers: int) -> float:
        with ThreadPoolExecutor(workers) as pool:
            begun = time.perf_counter()
            list(pool.map(hashlib.sha256, [data] * threads))
            return time.perf_counter() - begun

    return float(np.median([seconds(1) / seconds(threads) for _ in range(_WINDOWS)]))


def scene(
    worlds: Sequence[World], robots_per_world: int, robot: RobotSpec, threads: int = 1, seed: int = 0
) -> Simulator:
    """A simulator with robots at free poses, each as far from the others as fits.

    Raises:
        NoRoom: they do not fit.
    """
    simulator = Simulator(worlds, robot, robots_per_world, SimulatorConfig(threads=threads), seed)
    rng = np.random.default_rng(seed)
    spaces: dict[int, FreeSpace] = {}
    for i in range(simulator.num_robots):
        slot, first = i // robots_per_world, i - i % robots_per_world
        space = spaces.setdefault(id(worlds[slot]), FreeSpace(worlds[slot], robot.footprint))
        simulator.place([i], _free_pose(space, rng, simulator.poses[first:i])[None])
    return simulator


def _free_pose(space: FreeSpace, rng: np.random.Generator, taken: DoubleArray) -> DoubleArray:
    def at(spacing: float) -> DoubleArray:
        start, _ = space.sample(rng, min_distance=0.0, max_distance=math.inf, taken=taken, spacing=spacing)
        return start

    with suppress(NoRoom):
        return at(0.2)
    return at(0.0)
