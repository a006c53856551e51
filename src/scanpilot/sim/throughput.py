"""How many robot-steps a second the simulator makes: what ``scanpilot bench sim`` prints.

A robot-step is one robot advanced by one period with everything in it: motion, contacts
with the world and with the others, and its scan with the others in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import World


@dataclass(frozen=True)
class Throughput:
    """One row of the benchmark.

    Attributes:
        robots, worlds, beams, threads: what was run.
        robot_steps_per_s, beams_per_s: median over the steps of one run.
        motion_share: fraction of the time that is not scanning.
    """

    robots: int
    worlds: int
    beams: int
    threads: int
    robot_steps_per_s: float
    beams_per_s: float
    motion_share: float
    simulator: str = "scanpilot"


def benchmark_robot(beams: int, fov: float = 2.0 * math.pi, range_max: float = 10.0) -> RobotSpec:
    """The differential robot that all rows are measured with."""
    return RobotSpec(
        name="benchmark",
        kinematics="differential",
        footprint=Footprint(radius=0.2),
        limits=Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0),
        lidar=Lidar(beams=beams, angle_min=-0.5 * fov, angle_max=0.5 * fov, range_max=range_max),
        control_period=0.1,
    )


def measure(
    worlds: Sequence[World],
    robots_per_world: int,
    robot: RobotSpec,
    *,
    threads: int = 1,
    seconds: float = 2.0,
    period: float = 0.1,
    seed: int = 0,
) -> Throughput:
    """Drive robots about at random for a while; those that touch something turn to another course."""
    simulator = Simulator(worlds, robot, robots_per_world, SimulatorConfig(threads=threads), seed)
    rng = np.random.default_rng(seed)
    _place(simulator, rng)
    n = simulator.num_robots
    commands = np.zeros((n, 3))

    def turn(where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        count = int(where.sum())
        commands[where, 0] = rng.uniform(-0.3, 1.0, count) * robot.limits.vx
        commands[where, 2] = rng.uniform(-1.0, 1.0, count) * robot.limits.wz

    turn(np.ones(n, dtype=np.bool_))
    simulator.step(commands, period)
    simulator.scan()
    moving: list[float] = []
    scanning: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(moving) < 5:
        a = time.perf_counter()
        contacts = simulator.step(commands, period)
        b = time.perf_counter()
        simulator.scan()
        c = time.perf_counter()
        moving.append(b - a)
        scanning.append(c - b)
        turn(contacts | (rng.random(n) < 0.02))
    total = np.array(moving) + np.array(scanning)
    rate = n / float(np.median(total))
    beams = robot.lidar.beams
    return Throughput(
        robots=n,
        worlds=len(worlds),
        beams=beams,
        threads=threads,
        robot_steps_per_s=rate,
        beams_per_s=rate * beams,
        motion_share=float(np.sum(moving) / np.sum(total)),
    )


def _place(simulator: Simulator, rng: np.random.Generator) -> None:
    """Robots at free poses; each as far from the others as fits."""
    per_world = simulator.robots_per_world
    spaces: dict[int, FreeSpace] = {}
    for i in range(simulator.num_robots):
        slot, first = i // per_world, i - i % per_world
        world = simulator.worlds[slot]
        space = spaces.setdefault(id(world), FreeSpace(world, simulator.robot.footprint))
        for spacing in (0.2, 0.05, 0.0):
            try:
                start, _ = space.sample(
                    rng,
                    min_distance=0.0,
                    max_distance=math.inf,
                    taken=simulator.poses[first:i],
                    spacing=spacing,
                )
                break
            except NoRoom:
                if spacing == 0.0:
                    raise
        simulator.place([i], start[None])
