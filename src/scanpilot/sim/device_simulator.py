"""The simulator on a GPU: `Simulator` whose arrays are torch tensors on the device and stay there.

Worlds, order of events, delays, lateness and noise are those of `simulator`; only what touches an array
is here, and the loops are Warp's (`warp_kernels`) instead of numba's. Nothing here waits for the device:
robots are chosen by masks, never by looking which they are. New worlds and moving discs come from the
host; they are the only things that do.

Needs ``warp-lang`` (extra ``cuda``). Its kernels also run, slowly, on the processor (``device="cpu"``),
which is how they are tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import warp as wp
from torch import Tensor

from scanpilot.robot import Lidar, RobotSpec
from scanpilot.sim import kernels, warp_kernels
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import SHARES, SLICES, Simulator, SimulatorConfig, make_beams
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray

# Warp would greet on standard output, where results go.
wp.config.log_level = wp.LOG_WARNING

# Draws of a start with the wished spacing, and as many without; each is followed by eight of a goal.
_TRIES = 200


class DeviceSimulator(Simulator):
    """A batch of equal robots on a device; arrays in and out are torch tensors there.

    Attributes:
        device: where everything lies.
        failures: ``(1,)`` int32, how many robots `draw_missions` found no place for.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        robot: RobotSpec,
        robots_per_world: int,
        config: SimulatorConfig | None = None,
        seed: int = 0,
        *,
        streams: Sequence[int] | None = None,
        movers: int = 0,
        seen_outline: DoubleArray | None = None,
        device: str = "cuda",
    ) -> None:
        """As `Simulator`.

        Args:
            worlds, robot, robots_per_world, config, seed, streams, movers, seen_outline: as there.
            device: as torch calls it: ``cuda``, ``cuda:1``, or ``cpu`` for tests.
        """
        if config is not None and config.stage:
            raise ValueError("stage mode is for comparison with Stage, which the host's simulator is for")
        wp.init()
        self.device = torch.device(device)
        self._warp_device: Any = wp.device_from_torch(self.device)
        self._directions: dict[Lidar, Tensor] = {}
        super().__init__(
            worlds,
            robot,
            robots_per_world,
            config,
            seed,
            streams=streams,
            movers=movers,
            seen_outline=seen_outline,
        )
        for name in ("poses", "twists", "odometry", "_keys", "_scans", "_episodes", "_drift", "_gain"):
            setattr(self, name, self.put(getattr(self, name)))
        for name in ("_severity", "_lateness", "_delay_index"):
            setattr(self, name, self.put(getattr(self, name)))
        self._issued = [(since, self.put(commands)) for since, commands in self._issued]
        self._rows: Tensor = self.put(self._everyone)
        self._all: Tensor = torch.ones(self.num_robots, dtype=torch.bool, device=self.device)
        self.failures: Tensor = torch.zeros(1, dtype=torch.int32, device=self.device)
        n = self.num_robots
        self._motions, self._reached = self._empty(n, 3), self._empty(n, 3)
        self._near = self._empty(n)
        self._stances = self._empty(n, 4, dtype=torch.float32)
        self._sensors = self._empty(n, 4, dtype=torch.float32)
        body, base = self._body, self._base
        self._warp_body: Any = warp_kernels.Body()
        for name in ("polygon", "outline"):
            corners = getattr(body, name).astype(np.float32)
            setattr(self._warp_body, name, wp.array(corners, dtype=wp.vec2, device=self._warp_device))
        self._warp_body.radius, self._warp_body.outline_radius = body.radius, body.outline_radius
        self._warp_body.visible, self._warp_body.solid = body.visible, body.solid
        self._warp_base: Any = warp_kernels.Base()
        self._warp_base.speed = wp.vec3d(*base.speed)
        self._warp_base.acceleration = wp.vec3d(*base.acceleration)
        self._warp_base.turning_radius = base.turning_radius
        self._geometry_struct: Any = warp_kernels.Geometry()
        self._geometry_tensors: dict[str, Tensor] = {}
        self._spaces: list[FreeSpace] = []
        self._cells_struct: Any = warp_kernels.FreeCells()
        self._cells_tensors: dict[str, Tensor] = {}
        self._upload(range(len(self.worlds)))

    # What is shared with `Simulator` says Array and means either kind; here it is tensors.

    def place(self, indices: Any, poses: Any) -> None:
        """Put some robots at ``(K, 3)`` poses of the host, at rest, with no command pending."""
        if not np.isfinite(poses).all():
            raise ValueError("poses hold a number that is not finite")
        at = self._as_indices(indices)
        which = np.zeros(self.num_robots, dtype=np.bool_)
        which[at] = True
        everywhere = np.zeros((self.num_robots, 3))
        everywhere[at] = poses
        self.place_where(self.put(which), self.put(everywhere))

    def place_where(self, which: Tensor, poses: Tensor) -> None:
        """Put the robots of a mask ``(N,)`` at their rows of ``(N, 3)`` poses, as `place` does."""
        rows = which[:, None]
        self._overwrite(self.poses, rows, poses)
        self._overwrite(self.twists, rows, 0.0)
        for _, commands in self._issued:
            self._overwrite(commands, rows, 0.0)
        for _, past, _ in self._past:
            self._overwrite(past, rows, poses)
        self._episodes += which
        self._draw_errors(cast(Any, which))

    def reset_odometry(self, indices: Any) -> None:
        """Let the odometry of some robots, indices or a mask, start again at zero."""
        at = indices if isinstance(indices, Tensor) else torch.as_tensor(np.asarray(indices))
        self.odometry[at.to(self.device)] = 0.0

    def scan(self, lidar: Lidar | None = None, robots: Any = None, *, only: Tensor | None = None) -> Any:
        """``(K, beams)`` float32 ranges in metres.

        Args:
            lidar: the robot's own unless another is given.
            robots: K indices, or a mask; by default all. Choosing rows makes the host wait.
            only: ``(N,)`` mask of who scans, without waiting; there are N rows then, and those of the
                others mean nothing.
        """
        lidar = lidar or self.robot.lidar
        if robots is None:
            return self._scan_where(lidar, self._all if only is None else only)
        at = self._as_indices(robots)
        which = np.zeros(self.num_robots, dtype=np.bool_)
        which[at] = True
        return self._scan_where(lidar, self.put(which))[torch.from_numpy(at).to(self.device)]

    def clearance(self) -> Any:
        """``(N,)`` float64 distance from each footprint to the nearest obstacle or robot, metres."""
        out = self._empty(self.num_robots)
        self._launch(
            warp_kernels.clearances,
            self.num_robots,
            self._geometry_struct,
            self._warp_body,
            _rows(self.poses),
            self.robots_per_world,
            _rows(out),
        )
        return out

    def set_worlds(self, world_indices: Sequence[int] | kernels.IntArray, worlds: Sequence[World]) -> None:
        """Put other worlds in some slots; their robots keep their poses until they are placed."""
        before = self._geometry
        super().set_worlds(world_indices, worlds)
        if self._geometry is not before:
            self._geometry_tensors.clear()
            world_indices = range(len(self.worlds))
        self._upload([int(slot) for slot in world_indices])

    def set_movers(self, movers: DoubleArray) -> None:
        """Say where the moving discs are, ``(W, M, 3)`` of the host."""
        super().set_movers(movers)
        self._upload(())

    def walk(self, targets: DoubleArray, speeds: DoubleArray, duration: float, margin: float) -> None:
        """As `Simulator.walk`, on the host: it waits for the robots' poses."""
        self._remember()
        kernels.walk(
            self._geometry,
            self._body,
            cast(Any, self.poses).cpu().numpy(),
            self.robots_per_world,
            targets,
            speeds,
            float(duration),
            float(margin),
        )
        self._upload(())

    def wait(self) -> None:
        """Until all that was asked of the device is done; for measuring, since whoever reads waits anyhow."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def set_free_spaces(self, slots: Sequence[int], spaces: Sequence[FreeSpace]) -> None:
        """Say where robots may start in the worlds of some slots: all of them the first time."""
        if not self._spaces:
            self._spaces = list(spaces)
        for slot, space in zip(slots, spaces, strict=True):
            self._spaces[slot] = space
        room = self._cells_tensors["cells"].shape[1] if self._cells_tensors else 0
        need = max(len(space.cells) for space in spaces)
        if need > room:
            self._cells_tensors.clear()
            slots, room = range(len(self._spaces)), need + need // 4
        rows = [_cell_rows(self._spaces[slot], room) for slot in slots]
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        self._put_rows(self._cells_tensors, slots, stacked)
        for name, tensor in self._cells_tensors.items():
            setattr(self._cells_struct, name, _held(tensor, wp.vec2d if name == "origin" else None))
        self._cells_struct.resolution = self._spaces[0].resolution

    def draw_missions(
        self,
        ended: Tensor,
        starts: Tensor,
        goals: Tensor,
        *,
        min_distance: float,
        max_distance: float,
        spacing: float,
    ) -> None:
        """New starts and goals for the robots of a mask, into their rows of ``(N, 3)`` tensors.

        As `FreeSpace.sample` draws them, clear of the others and of moving discs. Where there is no room
        for the spacing there is none; a robot for which there is no room at all keeps its old ones and is
        counted in ``failures``.
        """
        self._launch(
            warp_kernels.place,
            len(self.worlds),
            self._geometry_struct,
            self._warp_body,
            self._cells_struct,
            self._seed + 8,
            _rows(self._keys),
            _rows(self._episodes),
            _rows(self.poses),
            _rows(ended),
            self.robots_per_world,
            spacing,
            min_distance,
            max_distance,
            _TRIES,
            _rows(starts),
            _rows(goals),
            _rows(self.failures),
        )

    def put(self, array: Any) -> Any:
        """A tensor on the device of what the host has; for arrays of state, whose types it keeps."""
        return torch.tensor(array, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """As `Simulator.state_dict`, on the host."""
        return cast("dict[str, Any]", _on_host(super().state_dict()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, in the same worlds; also from that of the host's simulator."""
        for name in ("poses", "twists", "odometry", "scans", "episodes"):
            own: Tensor = getattr(self, name if name in ("poses", "twists", "odometry") else f"_{name}")
            own.copy_(self.put(np.asarray(state[name])))
        self.time = float(state["time"])
        self._draw_errors(cast(Any, self._episodes > 0))
        self._past = [
            (float(when), cast(Any, self.put(np.asarray(poses))), np.array(movers))
            for when, poses, movers in state["past"]
        ]
        self._issued = [
            (-math.inf if since is None else float(since), cast(Any, self.put(np.asarray(commands))))
            for since, commands in state["issued"]
        ]
        self._geometry.movers[:] = state["movers"]
        self._upload(())

    # --- what `Simulator` calls -------------------------------------------------------------------------

    def _own_commands(self, commands: Any) -> Any:
        """A copy on the device; a robot whose command is not finite is to stop."""
        own = torch.as_tensor(commands, dtype=torch.float64).to(self.device, copy=True)
        if tuple(own.shape) != (self.num_robots, 3):
            raise ValueError(f"commands have shape {tuple(own.shape)}, expected ({self.num_robots}, 3)")
        return torch.where(torch.isfinite(own).all(dim=1, keepdim=True), own, 0.0)

    def _no_contacts(self) -> Any:
        return torch.zeros(self.num_robots, dtype=torch.bool, device=self.device)

    def _by_delay(self, of_delay: Any) -> Any:
        return torch.stack(tuple(of_delay))[self._delay_index, self._rows]

    def _draw_variety(self, at: Any) -> None:
        lateness = torch.floor(self._draw_shares(6, at) * (SHARES + 1)) / SHARES
        self._overwrite(self._severity, at, self._draw_shares(5, at))
        self._overwrite(self._lateness, at, lateness)
        self._overwrite(self._delay_index, at, (self._draw_shares(7, at) * len(self._delays)).long())

    def _draw_normals(self, purpose: int, at: Any, mean: Any, deviation: Any, out: Any) -> None:
        self._launch(
            warp_kernels.draw_normals,
            self.num_robots,
            self._seed + purpose,
            _rows(self._keys),
            _rows(self._episodes),
            _rows(at),
            wp.vec3d(*mean),
            wp.vec3d(*deviation),
            _rows(out),
        )

    def _draw_shares(self, purpose: int, at: Any) -> Any:
        shares = torch.zeros(self.num_robots, dtype=torch.float64, device=self.device)
        self._launch(
            warp_kernels.draw_shares,
            self.num_robots,
            self._seed + purpose,
            _rows(self._keys),
            _rows(self._episodes),
            _rows(at),
            _rows(shares),
        )
        return shares

    def _beams_of(self, lidar: Lidar) -> kernels.Beams:
        beams = self._beams.get(lidar)
        if beams is None:
            made = make_beams(lidar, self.num_robots)
            beams = self._beams[lidar] = made._replace(mounts=self.put(made.mounts))
            self._directions[lidar] = self.put(np.stack((made.dx, made.dy), axis=1).astype(np.float32))
            if isinstance(self._episodes, Tensor):
                self._draw_mounts(lidar, cast(Any, self._episodes > 0))
        return beams

    def _substep(self, target: Any, duration: float, contacts: Any) -> None:
        self._launch(
            warp_kernels.intend,
            self.num_robots,
            self._geometry_struct,
            self._warp_body,
            self._warp_base,
            _rows(self.poses),
            _rows(self.twists),
            _rows(target),
            float(duration),
            self.robots_per_world,
            _rows(self._motions),
            _rows(self._reached),
            _rows(self._near),
        )
        self._launch(
            warp_kernels.move,
            len(self.worlds),
            self._geometry_struct,
            self._warp_body,
            _rows(self.poses),
            _rows(self.twists),
            _rows(self.odometry),
            _rows(self._drift),
            _rows(self._motions),
            _rows(self._reached),
            _rows(self._near),
            self.robots_per_world,
            _rows(contacts),
        )

    def _scan_where(self, lidar: Lidar, only: Tensor) -> Tensor:
        beams = self._beams_of(lidar)
        ranges = torch.empty((self.num_robots, lidar.beams), dtype=torch.float32, device=self.device)
        self._scans += only
        if self.config.scan_latency + self.config.scan_duration > 0.0:
            self._cast_late_where(lidar, beams, only, ranges)
        else:
            self._cast_where(lidar, beams, self.poses, only, ranges, 0, lidar.beams)
        self._spoil_where(ranges, only, lidar.range_max)
        return ranges

    def _cast_late_where(self, lidar: Lidar, beams: kernels.Beams, only: Tensor, ranges: Tensor) -> None:
        """As `Simulator._cast_late`, for every lateness that there may be."""
        latency, duration = self.config.scan_latency, self.config.scan_duration
        slices = min(SLICES, lidar.beams) if duration > 0.0 else 1
        shares = [part / SHARES for part in range(SHARES + 1)] if self.config.vary else [1.0]
        for share in shares:
            which = only & torch.as_tensor(self._lateness == share)
            for part in range(slices):
                age = share * (latency + duration * (1.0 - (part + 0.5) / slices))
                poses, movers = self._seen_at(self.time - age)
                if movers.shape[1]:
                    self._upload_movers(movers)
                begin, end = lidar.beams * part // slices, lidar.beams * (part + 1) // slices
                self._cast_where(lidar, beams, poses, which, ranges, begin, end)
        if self._geometry.movers.shape[1]:
            self._upload_movers(self._geometry.movers)

    def _cast_where(
        self,
        lidar: Lidar,
        beams: kernels.Beams,
        poses: Any,
        only: Tensor,
        ranges: Tensor,
        begin: int,
        end: int,
    ) -> None:
        self._launch(
            warp_kernels.stand,
            self.num_robots,
            self._geometry_struct,
            _rows(poses),
            _rows(beams.mounts),
            self.robots_per_world,
            _rows(self._stances, wp.vec4),
            _rows(self._sensors, wp.vec4),
        )
        self._launch(
            warp_kernels.scan,
            (self.num_robots, end - begin),
            self._geometry_struct,
            self._warp_body,
            _rows(self._directions[lidar], wp.vec2),
            beams.range_max,
            self.robots_per_world,
            _rows(self._stances, wp.vec4),
            _rows(self._sensors, wp.vec4),
            _rows(only),
            begin,
            _rows(ranges, wp.float32),
        )

    def _spoil_where(self, ranges: Tensor, only: Tensor, range_max: float) -> None:
        c = self.config
        if not (c.scan_noise or c.scan_noise_proportional or c.scan_dropout or c.scan_short):
            return
        self._launch(
            warp_kernels.spoil,
            tuple(ranges.shape),
            _rows(ranges, wp.float32),
            self._seed,
            _rows(self._keys),
            _rows(self._scans),
            _rows(self._severity),
            c.scan_noise,
            c.scan_noise_proportional,
            c.scan_dropout,
            c.scan_short,
            range_max,
            _rows(only),
        )

    # --- the device ------------------------------------------------------------------------------------

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    @staticmethod
    def _overwrite(target: Any, which: Tensor, values: Any) -> None:
        """Take over ``values`` where ``which``, without asking where that is."""
        target.copy_(torch.where(which, values, target))

    def _launch(self, kernel: Any, threads: Any, *inputs: Any) -> None:
        """Start a kernel where torch's own work is queued, so that each sees what the other has done."""
        stream = None
        if self.device.type == "cuda":
            stream = wp.stream_from_torch(torch.cuda.current_stream(self.device))
        wp.launch(kernel, threads, inputs=inputs, device=self._warp_device, stream=stream)

    def _upload(self, slots: Sequence[int]) -> None:
        """Bring the geometry of some slots, and all moving discs, to the device."""
        if slots:
            rows = _geometry_rows(self._geometry, self.worlds, slots)
            self._put_rows(self._geometry_tensors, slots, rows)
            for name, tensor in self._geometry_tensors.items():
                setattr(self._geometry_struct, name, _held(tensor, _GEOMETRY_TYPES.get(name)))
        self._upload_movers(self._geometry.movers)

    def _upload_movers(self, movers: DoubleArray) -> None:
        # One more, which is none, because there is no array without columns.
        near = np.pad(movers, ((0, 0), (0, 1), (0, 0)), constant_values=-1.0)
        near[:, :, :2] -= _centres(self.worlds)[:, None]
        self._movers: Tensor = self.put(near.astype(np.float32))
        self._geometry_struct.movers = _held(self._movers, wp.vec3)

    def _put_rows(self, tensors: dict[str, Tensor], slots: Sequence[int], rows: dict[str, Any]) -> None:
        """Replace the rows of some slots; all of them where there are no tensors yet."""
        for name, values in rows.items():
            if name not in tensors:
                tensors[name] = self.put(values)
                continue
            for row, slot in enumerate(slots):
                tensors[name][slot] = torch.as_tensor(values[row])


_GEOMETRY_TYPES = {
    "centre": wp.vec2d,
    "frame": wp.vec3,
    "tiles": wp.vec2i,
    "segments": wp.vec4,
    "circles": wp.vec3,
}


def _held(tensor: Tensor, dtype: Any) -> Any:
    """A tensor as a field of one of Warp's structs, without a copy."""
    return wp.from_torch(tensor, dtype=dtype, requires_grad=False)


def _rows(tensor: Any, dtype: Any = None) -> Any:
    """A tensor as an argument of a kernel, without a copy; rows of three float64 are vectors."""
    if dtype is None and tensor.dtype == torch.float64 and tensor.ndim == 2:
        dtype = wp.vec3d
    elif dtype is None and tensor.dtype == torch.bool:
        dtype = wp.bool
    return wp.from_torch(tensor, dtype=dtype, requires_grad=False, return_ctype=True)


def _centres(worlds: Sequence[World]) -> DoubleArray:
    """``(W, 2)`` middles, which the device's float32 coordinates start from."""
    bounds = np.array([world.bounds for world in worlds], dtype=np.float64)
    return 0.5 * (bounds[:, :2] + bounds[:, 2:])


def _geometry_rows(
    geometry: kernels.Geometry, worlds: Sequence[World], slots: Sequence[int]
) -> dict[str, Any]:
    at = list(slots)
    centre = _centres([worlds[slot] for slot in at])
    frame, segments, circles = geometry.frame[at], geometry.segments[at], geometry.circles[at]
    frame[:, :2] -= centre
    segments -= np.tile(centre, 2)[:, None]
    circles[:, :, :2] -= centre[:, None]
    rows: dict[str, Any] = {
        "centre": centre,
        "frame": frame.astype(np.float32),
        "tiles": geometry.tiles[at].astype(np.int32),
        "segment_start": geometry.segment_start[at].astype(np.int32),
        "circle_start": geometry.circle_start[at].astype(np.int32),
        "segments": segments.astype(np.float32),
        "segment_flags": geometry.segment_flags[at],
        "circles": circles.astype(np.float32),
        "circle_flags": geometry.circle_flags[at],
    }
    # There is no array without columns; this one is in no tile.
    return {
        name: row if row.size else np.zeros((len(at), 1, *row.shape[2:]), row.dtype)
        for name, row in rows.items()
    }


def _cell_rows(space: FreeSpace, room: int) -> dict[str, Any]:
    cells, component = np.zeros(room, np.int32), np.zeros(room, np.int32)
    count = len(space.cells)
    cells[:count] = space.cells
    component[:count] = space.component.reshape(-1)[space.cells]
    return {
        "count": np.int32(count),
        "cells": cells,
        "component": component,
        "columns": np.int32(space.component.shape[1]),
        "origin": np.array(space.origin, dtype=np.float64),
    }


def _on_host(tree: Any) -> Any:
    """The same with arrays, which are copies, in place of tensors."""
    if isinstance(tree, Tensor):
        return tree.cpu().numpy().copy()
    if isinstance(tree, dict):
        return {key: _on_host(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_on_host(value) for value in tree]
    return tree
