"""Other simulators on the same scene, for ``scanpilot bench sim``: IR-SIM and navground, where installed.

Our own kernels for CUDA are measured as if they were one of them.

Each gets the world's outlines and discs, the same robots at the same poses, and lidars with the same
beams; `Peer.scan` shows that they see the same. Nothing else of scanpilot knows of them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml

from scanpilot.robot import RobotSpec
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray, FloatArray


class Peer(Protocol):
    """A simulator with R robots in one world."""

    @property
    def name(self) -> str:
        """With its version."""
        ...

    @property
    def rescan(self) -> Callable[[], None] | None:
        """Take everybody's scan once more and nothing else, where that can be asked for."""
        ...

    def step(self, commands: DoubleArray, duration: float) -> None:
        """Everything of one step: motion, contacts, scans. ``(R, 3)`` as `Simulator.step` takes them."""
        ...

    def scan(self) -> FloatArray:
        """``(R, beams)`` ranges as of the last step."""
        ...


def missing() -> list[str]:
    """Names of the peers that are not installed."""
    return [name for name, module in _MODULES.items() if importlib.util.find_spec(module) is None]


def installed(world: World, robot: RobotSpec, poses: DoubleArray, period: float) -> Iterator[Peer]:
    """The peers that are installed, each set up with robots at ``(R, 3)`` poses and a fixed period."""
    absent = missing()
    for name, make in _MAKERS.items():
        if name not in absent:
            yield make(world, robot, poses, period)


class OnDevice:
    """The embedded simulator's other kernels, in the worlds of a scene and with its robots where they are.

    Args:
        scene: of the host's simulator.
        device: as torch calls it.
    """

    def __init__(self, scene: Simulator, device: str) -> None:
        from scanpilot.sim.device_simulator import DeviceSimulator

        self.name = f"scanpilot, Warp on {device}"
        self._simulator = DeviceSimulator(
            scene.worlds, scene.robot, scene.robots_per_world, scene.config, device=device
        )
        self._simulator.place(np.arange(scene.num_robots), scene.poses)

    def step(self, commands: DoubleArray, duration: float) -> None:
        """Until the device is done; the commands come from the host, as they would not in training."""
        self._simulator.step(commands, duration)
        self.rescan()

    def rescan(self) -> None:
        """Until the device is done."""
        self._simulator.scan()
        self._simulator.wait()

    def scan(self) -> FloatArray:
        """``(N, beams)`` ranges, brought to the host."""
        ranges: FloatArray = np.asarray(self._simulator.scan().cpu())
        return ranges


class IrSim:
    """IR-SIM: a robot that meets something stays where it is, which is its default."""

    rescan = None

    def __init__(self, world: World, robot: RobotSpec, poses: DoubleArray, period: float) -> None:
        self.name = f"IR-SIM {importlib.metadata.version('ir-sim')}"
        scene = _irsim_scene(world, robot, poses, period)
        with tempfile.TemporaryDirectory() as folder, _quiet():
            import irsim

            path = Path(folder, "scene.yaml")
            path.write_text(yaml.safe_dump(scene), encoding="utf-8")
            self._environment = irsim.make(str(path), display=False, disable_all_plot=True, log_level="ERROR")
        self._robots = len(poses)

    def step(self, commands: DoubleArray, duration: float) -> None:
        """One step of the period it was made with."""
        self._environment.step([np.array([[vx], [wz]]) for vx, _, wz in commands])

    def scan(self) -> FloatArray:
        """What the last step's scans were."""
        scans = [self._environment.get_lidar_scan(i)["ranges"] for i in range(self._robots)]
        return np.array(scans, dtype=np.float32)


def _irsim_scene(world: World, robot: RobotSpec, poses: DoubleArray, period: float) -> dict[str, Any]:
    x0, y0, x1, y1 = world.bounds
    obstacles: list[dict[str, Any]] = []
    for solid in world.solids:
        for loop in solid.loops:
            # Holes and thin walls are lines to it.
            if len(solid.loops) == 1 and len(loop) > 2:
                shape = {"name": "polygon", "vertices": loop.tolist()}
            else:
                shape = {"name": "linestring", "vertices": [*loop.tolist(), loop[0].tolist()]}
            obstacles.append({"shape": shape, "state": [0.0, 0.0, 0.0]})
    for disc in world.discs:
        circle = {"name": "circle", "radius": float(disc.radius)}
        obstacles.append({"shape": circle, "state": [float(disc.x), float(disc.y), 0.0]})
    lidar, limits = robot.lidar, robot.limits
    sensor = {
        "name": "lidar2d",
        "range_min": 0.0,
        "range_max": lidar.range_max,
        "angle_range": lidar.angle_max - lidar.angle_min,
        "number": lidar.beams,
    }
    machines = [
        {
            "kinematics": {"name": "diff"},
            "shape": {"name": "circle", "radius": robot.footprint.circumscribed_radius},
            "state": pose,
            # Out of reach, so that nobody arrives.
            "goal": [x1 + 1000.0, y1 + 1000.0, 0.0],
            "vel_min": [-limits.vx, -limits.wz],
            "vel_max": [limits.vx, limits.wz],
            "acce": [limits.ax, limits.awz],
            "sensors": [sensor],
        }
        for pose in poses.tolist()
    ]
    frame = {"width": x1 - x0 + 2.0, "height": y1 - y0 + 2.0, "offset": [x0 - 1.0, y0 - 1.0]}
    times = {"step_time": period, "sample_time": period, "collision_mode": "stop"}
    # As plain data throughout: YAML writes numpy's numbers as objects.
    return {"world": {**frame, **times}, "robot": machines, "obstacle": obstacles}


class Navground:
    """navground: robots push each other and walls apart where they overlap."""

    def __init__(self, world: World, robot: RobotSpec, poses: DoubleArray, period: float) -> None:
        from navground import core, sim

        self.name = f"navground {importlib.metadata.version('navground')}"
        self._core = core
        self._world = sim.World()
        for x0, y0, x1, y1 in world.segments:
            self._world.add_wall(sim.Wall(np.array((x0, y0)), np.array((x1, y1))))
        for x, y, radius in world.circles:
            self._world.add_obstacle(sim.Obstacle(np.array((x, y)), float(radius)))
        self._agents = [self._agent(sim, robot, pose, period) for pose in poses]
        # Nothing is sensed before the first update.
        self.step(np.zeros((len(poses), 3)), 1e-6)

    def _agent(self, sim: Any, robot: RobotSpec, pose: DoubleArray, period: float) -> Any:
        kinematics = self._core.Kinematics.make_type("2WDiff")
        kinematics.max_speed, kinematics.max_angular_speed = robot.limits.vx, robot.limits.wz
        kinematics.wheel_axis = 2.0 * robot.footprint.circumscribed_radius
        behavior = self._core.Behavior.make_type("Dummy")
        behavior.set("environment", "Sensing")
        lidar = sim.StateEstimation.make_type("Lidar")
        lidar.range, lidar.resolution = robot.lidar.range_max, robot.lidar.beams
        lidar.start_angle = robot.lidar.angle_min
        lidar.field_of_view = robot.lidar.angle_max - robot.lidar.angle_min
        agent = sim.Agent(robot.footprint.circumscribed_radius, behavior, kinematics, None, [lidar], period)
        agent.pose = self._core.Pose2(pose[:2], float(pose[2]))
        self._world.add_agent(agent)
        return agent

    def step(self, commands: DoubleArray, duration: float) -> None:
        """One step; accelerations are not limited."""
        for agent, (vx, vy, wz) in zip(self._agents, commands, strict=True):
            twist = self._core.Twist2(np.array((vx, vy)), float(wz), self._core.Frame.relative)
            agent.controller.follow_manual_cmd(twist)
        self._world.update(duration)

    def scan(self) -> FloatArray:
        """What the last step's scans were."""
        return np.array(
            [a.state_estimations[0].read_ranges(a.behavior.environment_state) for a in self._agents],
            dtype=np.float32,
        )

    def rescan(self) -> None:
        """Everybody's scan alone."""
        for agent in self._agents:
            agent.state_estimations[0].update(agent, self._world, agent.behavior.environment_state)


@contextmanager
def _quiet() -> Iterator[None]:
    """IR-SIM prints which windows it cannot open; matplotlib is told that there are none."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


_MODULES = {"IR-SIM": "irsim", "navground": "navground"}
_MAKERS: dict[str, Callable[[World, RobotSpec, DoubleArray, float], Peer]] = {
    "IR-SIM": IrSim,
    "navground": Navground,
}
