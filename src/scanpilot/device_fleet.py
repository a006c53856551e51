"""`SimulatedFleet` on a GPU: tensors in, tensors out, so that simulator, replay and learner share one memory.

A step never waits for the device. Who is done is a mask; new starts, goals and first scans are made for
that mask. The host only brings new worlds, whose turn it knows without looking. An observation with guidance
is the exception: its map is the host's, so each step waits for it.

The arithmetic of `command`, `observation` and `task` is written once more here for tensors, and tests hold
it equal to theirs. What is not here: walkers and cars, whose moves and starts are the host's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanpilot import command
from scanpilot.fleet import FleetConfig
from scanpilot.observation import ERROR_CODE_LIMIT, ObservationSpec, ScanResampler, guide_for
from scanpilot.robot import RobotSpec
from scanpilot.sim.device_simulator import DeviceSimulator
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.sources import WorldMaker
from scanpilot.sim.walkers import Walkers
from scanpilot.sim.world import World
from scanpilot.task import TaskConfig, suited_to
from scanpilot.types import StepResult, Triplet

# Steps between two looks at whether some robot had no room; a look waits for the device.
_LOOK_EVERY = 200


class DeviceFleet:
    """Robots in the simulator on a device, each with its own start and goal; see `fleet.Fleet`.

    Where `Fleet` has arrays there are tensors on ``device``. An action that is not finite makes its robot
    stop and is counted in ``info["invalid"]``, since raising for it would mean waiting.

    Args:
        make_world: the world of each number 0, 1, 2, ...; the fleet goes through them.
        robot: what every robot is.
        observation: what it sees.
        task: rewards and ends of episodes; brought to the robot's steps by `task.suited_to`.
        config: sizes.
        seed: of starts, goals and noise.
        device: as torch calls it: ``cuda``, ``cuda:1``, or ``cpu`` for tests.
    """

    def __init__(
        self,
        make_world: WorldMaker,
        robot: RobotSpec,
        observation: ObservationSpec,
        task: TaskConfig,
        config: FleetConfig,
        seed: int,
        device: str = "cuda",
    ) -> None:
        if Walkers.room(config.walkers):
            raise ValueError("walkers are moved by the host: use SimulatedFleet, or no fleet.walkers")
        if robot.kinematics == "car":
            raise ValueError("where a car may start is found by the host: use SimulatedFleet")
        self._make_world = make_world
        self._robot, self._observation, self._config = robot, observation, config
        self._task = suited_to(task, robot)
        self.world_numbers = list(range(config.worlds))
        worlds = [make_world(number) for number in self.world_numbers]
        self._spaces = [FreeSpace(world, robot.footprint) for world in worlds]
        self.simulator = DeviceSimulator(
            worlds, robot, config.robots_per_world, config.simulator, seed, device=device
        )
        self.simulator.set_free_spaces(range(config.worlds), self._spaces)
        self.device = self.simulator.device
        self._beams = _Beams(observation, robot, self.device)
        self._active = self._tensor(command.active_components(robot).astype(np.float32))
        self._low, self._high = self._tensor(command.ACTION_LOW), self._tensor(command.ACTION_HIGH)
        self._scale = self._tensor((robot.limits.vx, robot.limits.vy, robot.limits.wz))
        n = self.simulator.num_robots
        self.starts, self.goals = self._tensor(np.zeros((n, 3))), self._tensor(np.zeros((n, 3)))
        self._steps = self._tensor(np.zeros(n, dtype=np.int64))
        self._frames = self._tensor(np.zeros((n, *observation.scan_shape), dtype=np.float32))
        self._guide = guide_for(observation, n)
        self._guidance = self._tensor(np.zeros((n, 3), dtype=np.float32)) if self._guide else None
        # Staggered, so that not all worlds change at once.
        self._ages = np.arange(config.worlds) * config.world_lifetime // config.worlds
        self._until_look = 0
        self._current = self._begin_anew(self._tensor(np.ones(n, dtype=np.bool_)))

    @property
    def num_robots(self) -> int:
        """N."""
        return self.simulator.num_robots

    @property
    def robot(self) -> RobotSpec:
        """What every robot is."""
        return self._robot

    @property
    def observation(self) -> ObservationSpec:
        """What every robot sees."""
        return self._observation

    def observe(self) -> Triplet:
        """The triplets ``(N, ...)`` that the next actions are to answer."""
        return self._current

    def step(self, actions: Any) -> StepResult:
        """Execute ``(N, 3)`` actions for one control period; ended episodes begin anew.

        ``info`` is that of `SimulatedFleet.step`, and ``invalid``.

        Raises:
            scanpilot.sim.free_space.NoRoom: lately, there was no free start with a goal in some world.
        """
        result = self.advance(actions)
        expired = self._expired_worlds()
        if expired:
            given_way = self._in_worlds(expired) & ~_tensor(result.terminated)
            result = replace(result, truncated=cast(Any, _tensor(result.truncated) | given_way))
        for world in expired:
            self._next_world(world)
        self._current = self._begin_anew(_tensor(result.terminated) | _tensor(result.truncated))
        return result

    def advance(self, actions: Any) -> StepResult:
        """`step` without new episodes: who is done stays where it is until `restart`, and so do worlds."""
        simulator = self.simulator
        executed, invalid = self._executed(torch.as_tensor(actions).to(self.device, torch.float32))
        distance = self._goal_distance()
        commands: Any = executed.double() * self._scale
        contact = _tensor(simulator.step(commands, self._robot.control_period))
        self._steps = self._steps + 1
        clearance = _tensor(simulator.clearance())
        rewards, reached, timed_out = judge(
            distance, self._goal_distance(), clearance, contact, self._steps, self._task
        )
        newest = self._beams(_tensor(simulator.scan()))
        self._frames = torch.cat((self._frames[:, 1:], newest[:, None]), dim=1)
        self._be_guided(np.arange(self.num_robots))
        self._current = self._triplets()
        info = {
            "clearance": clearance,
            "poses": _tensor(simulator.poses).clone(),
            "twists": _tensor(simulator.twists).clone(),
            "goals": self.goals.clone(),
            "starts": self.starts.clone(),
            "episode_steps": self._steps,
            "timed_out": timed_out,
            "invalid": invalid,
        }
        return StepResult(
            triplets=self._current,
            actions=cast(Any, executed),
            rewards=cast(Any, rewards),
            terminated=cast(Any, reached | contact),
            truncated=cast(Any, timed_out),
            reached=cast(Any, reached),
            collided=cast(Any, contact),
            info=cast(Any, info),
        )

    def restart(self, robots: Any, next_worlds: Sequence[int] = ()) -> Triplet:
        """Begin new episodes of the robots of a mask; see `SimulatedFleet.restart`."""
        self._ages[list(next_worlds)] = 0
        for world in next_worlds:
            self._next_world(world)
        self._current = self._begin_anew(torch.as_tensor(robots).to(self.device))
        return self._current

    def state_dict(self) -> dict[str, Any]:
        """Worlds, robots and episodes, on the host: the fleet goes on to the last digit."""
        self._look()
        return {
            "world_numbers": list(self.world_numbers),
            "simulator": self.simulator.state_dict(),
            "frames": self._frames.cpu().numpy().copy(),
            "starts": self.starts.cpu().numpy().copy(),
            "goals": self.goals.cpu().numpy().copy(),
            "steps": self._steps.cpu().numpy().copy(),
            "ages": self._ages.copy(),
            **(
                {"guide": self._guide.memory.copy(), "guidance": self._guidance.cpu().numpy().copy()}
                if self._guide and self._guidance is not None
                else {}
            ),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave to a fleet made with the same arguments."""
        self.world_numbers = [int(number) for number in state["world_numbers"]]
        worlds = [self._make_world(number) for number in self.world_numbers]
        self._spaces = [FreeSpace(world, self._robot.footprint) for world in worlds]
        self.simulator.set_worlds(range(len(worlds)), worlds)
        self.simulator.set_free_spaces(range(len(worlds)), self._spaces)
        self.simulator.load_state_dict(state["simulator"])
        self.starts, self.goals = self._tensor(state["starts"]), self._tensor(state["goals"])
        self._steps, self._frames = self._tensor(state["steps"]), self._tensor(state["frames"])
        self._ages = np.array(state["ages"])
        if self._guide is not None:
            self._guide.restore(np.array(state["guide"]))
            self._guidance = self._tensor(state["guidance"])
        self._current = self._triplets()

    def close(self) -> None:
        """Nothing to let go of."""

    def world_of(self, robot: int) -> World:
        """The world that a robot is in."""
        return self.simulator.worlds[robot // self._config.robots_per_world]

    def space_of(self, robot: int) -> FreeSpace:
        """The free space of the world that a robot is in."""
        return self._spaces[robot // self._config.robots_per_world]

    def _executed(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`command.executed_actions`, and which rows were not finite: those are 0."""
        finite = torch.isfinite(actions).all(dim=1)
        clipped = torch.where(finite[:, None], actions, 0.0).clamp(self._low, self._high)
        return clipped * self._active + 0.0, ~finite

    def _goal_distance(self) -> Tensor:
        """``(N,)`` metres to go: what progress is measured by, and whether the goal is reached."""
        offset = self.goals[:, :2] - _tensor(self.simulator.poses)[:, :2]
        return torch.hypot(offset[:, 0], offset[:, 1])

    def _triplets(self) -> Triplet:
        """What all robots see now."""
        goals = relative_poses(self.goals, _tensor(self.simulator.poses))
        speeds = _tensor(self.simulator.twists)
        guidance: Any = self._guidance
        return Triplet(cast(Any, self._frames), cast(Any, goals.float()), cast(Any, speeds.float()), guidance)

    def _be_guided(self, robots: NDArray[np.int64]) -> None:
        """Ask the host's guide for some robots, by what they see now."""
        if self._guide is None or self._guidance is None:
            return
        rows = torch.from_numpy(robots).to(self.device)
        goals = relative_poses(self.goals, _tensor(self.simulator.poses)).float()
        told = self._guide(
            self._frames[rows, -1].cpu().numpy(),
            goals[rows].cpu().numpy(),
            _tensor(self.simulator.poses)[rows].cpu().numpy(),
            robots,
        )
        # A new tensor, since the one before is in triplets that were given away.
        self._guidance = self._guidance.index_copy(0, rows, torch.from_numpy(told).to(self.device))

    def _begin_anew(self, ended: Tensor) -> Triplet:
        """Put robots whose episode ended at new starts; returns what all robots see then."""
        low, high = self._config.goal_distance
        simulator = self.simulator
        simulator.draw_missions(
            ended,
            self.starts,
            self.goals,
            min_distance=low,
            max_distance=high,
            spacing=self._config.start_spacing,
        )
        simulator.place_where(ended, self.starts)
        self._steps = torch.where(ended, 0, self._steps)
        first = self._beams(_tensor(simulator.scan(only=ended)))
        self._frames = torch.where(ended[:, None, None], first[:, None], self._frames)
        if self._guide is not None:
            robots = np.flatnonzero(ended.cpu().numpy())
            self._guide.forget(robots)
            self._be_guided(robots)
        self._until_look -= 1
        if self._until_look < 0:
            self._look()
        return self._triplets()

    def _look(self) -> None:
        self._until_look = _LOOK_EVERY
        failures = int(self.simulator.failures)
        if failures:
            raise NoRoom(f"there was no free start with a connected goal for {failures} new episodes")

    def _expired_worlds(self) -> list[int]:
        if not self._config.world_lifetime:
            return []
        self._ages += 1
        expired = np.flatnonzero(self._ages >= self._config.world_lifetime)
        self._ages[expired] = 0
        return [int(world) for world in expired]

    def _in_worlds(self, worlds: list[int]) -> Tensor:
        inside = np.zeros((self._config.worlds, self._config.robots_per_world), dtype=np.bool_)
        inside[worlds] = True
        return self._tensor(inside.reshape(-1))

    def _next_world(self, world: int) -> None:
        number = max(self.world_numbers) + 1
        self.world_numbers[world] = number
        made = self._make_world(number)
        self._spaces[world] = FreeSpace(made, self._robot.footprint)
        self.simulator.set_worlds([world], [made])
        self.simulator.set_free_spaces([world], [self._spaces[world]])

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, device=self.device)


def judge(
    distance: Tensor,
    next_distance: Tensor,
    clearance: Tensor,
    contact: Tensor,
    steps: Tensor,
    config: TaskConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """`task.judge` of tensors: rewards, reached and truncated."""
    reached = (next_distance < config.goal_radius) & ~contact
    truncated = (steps >= config.time_limit) & ~contact & ~reached
    rewards = (
        config.progress * (distance - next_distance)
        + config.goal * reached
        + config.collision * contact
        + config.time
        + config.near * (1.0 - clearance / config.near_distance).clamp(0.0, 1.0)
    )
    return rewards.float(), reached, truncated


def relative_poses(targets: Tensor, origins: Tensor) -> Tensor:
    """`geometry.relative_poses` of tensors."""
    c, s = torch.cos(origins[:, 2]), torch.sin(origins[:, 2])
    dx, dy = targets[:, 0] - origins[:, 0], targets[:, 1] - origins[:, 1]
    yaw = (targets[:, 2] - origins[:, 2] + math.pi) % (2.0 * math.pi) - math.pi
    return torch.stack((c * dx + s * dy, c * dy - s * dx, yaw), dim=1)


class _Beams:
    """`observation.ScanResampler` of tensors for a robot's lidar."""

    def __init__(self, spec: ObservationSpec, robot: RobotSpec, device: torch.device) -> None:
        lidar = robot.lidar
        self._spec, self._range_max = spec, float(np.float32(lidar.range_max))
        self._mount = lidar.mount
        self._resampler = ScanResampler(
            spec,
            lidar.angle_min,
            lidar.angle_increment,
            lidar.beams,
            lidar.range_min,
            lidar.range_max,
            lidar.mount,
        )
        angles = lidar.mount.yaw + lidar.angle_min + lidar.angle_increment * np.arange(lidar.beams)
        self._directions = torch.tensor(angles, device=device)
        centred = lidar.mount.x == 0.0 and lidar.mount.y == 0.0
        self._fixed = self._resampler.sectors(self._directions, torch).long() if centred else None

    def __call__(self, ranges: Tensor) -> Tensor:
        """``(N, n)`` policy beams of ``(N, m)`` ranges, metres."""
        hit = (ranges > ERROR_CODE_LIMIT) & (ranges < self._range_max)
        sectors, distance = self._fixed, torch.where(hit, ranges, math.inf)
        if sectors is None:
            reach = torch.where(hit, ranges, 0.0).double()
            x = self._mount.x + reach * torch.cos(self._directions)
            y = self._mount.y + reach * torch.sin(self._directions)
            distance = torch.where(hit, torch.hypot(x, y), math.inf).float()
            sectors = self._resampler.sectors(torch.atan2(y, x), torch).long()
        # One column more, for beams outside of the field of view.
        nearest = torch.full((len(ranges), self._spec.beams + 1), math.inf, device=ranges.device)
        for row in sectors:
            nearest.scatter_reduce_(1, row.expand_as(distance), distance, "amin")
        return nearest[:, :-1].clamp(self._spec.range_min, self._spec.range_max)


def _tensor(array: Any) -> Tensor:
    """What `DeviceSimulator` and `DeviceFleet` hold where their types say array."""
    return cast(Tensor, array)
