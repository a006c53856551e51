"""Pictures of worlds. matplotlib is imported here only, and only when something is drawn."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scanpilot.geometry import transform_points
from scanpilot.sim.world import PlacedRobot, World
from scanpilot.types import DoubleArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_world(axes: Axes, world: World, *, robots: bool = False) -> None:
    """Draw a world's bodies, and the robots as its file places them, to scale."""
    from matplotlib.patches import Circle, PathPatch
    from matplotlib.path import Path as Outline

    for solid in world.solids:
        vertices: list[DoubleArray] = []
        codes: list[int] = []
        for loop in solid.loops:
            vertices += [loop, loop[:1]]
            codes += [int(Outline.MOVETO), *[int(Outline.LINETO)] * (len(loop) - 1), int(Outline.CLOSEPOLY)]
        outline = Outline(np.concatenate(vertices), codes)
        # What robots cannot hit, or lidars cannot see, is drawn pale.
        strength = 1.0 if solid.obstacle and solid.visible else 0.4
        color = readable_color(solid.color)
        axes.add_patch(PathPatch(outline, facecolor=color, edgecolor=color, linewidth=0.3, alpha=strength))
    for disc in world.discs:
        axes.add_patch(Circle((disc.x, disc.y), disc.radius, color=readable_color(disc.color)))
    if robots:
        for robot in world.robots:
            _draw_robot(axes, robot)
    x0, y0, x1, y1 = world.bounds if world.area == world.bounds else _grown(world.area)
    margin = 0.02 * max(x1 - x0, y1 - y0)
    axes.set_xlim(x0 - margin, x1 + margin)
    axes.set_ylim(y0 - margin, y1 + margin)
    axes.set_aspect("equal")


def save_world(world: World, path: str | Path) -> None:
    """Write a picture of a world and its robots; the suffix decides the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x0, y0, x1, y1 = world.bounds
    shape = min(max((y1 - y0) / max(x1 - x0, 1e-9), 0.25), 4.0)
    figure = Figure(figsize=(8.0, 8.0 * shape) if shape < 1.0 else (8.0 / shape, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_world(axes, world, robots=True)
    axes.set_title(world.name)
    axes.set_xlabel("x [m]")
    axes.set_ylabel("y [m]")
    figure.savefig(path, dpi=110)


def _grown(area: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """An arena and the walls around it."""
    return (area[0] - 0.2, area[1] - 0.2, area[2] + 0.2, area[3] + 0.2)


def readable_color(name: str) -> Any:
    """A colour of a world file as matplotlib takes it; grey for what it does not know."""
    from matplotlib.colors import is_color_like

    plain = name.replace(" ", "").lower()
    grey = re.fullmatch(r"gr[ae]y(\d{1,3})", plain)
    if grey:
        return str(min(int(grey.group(1)), 100) / 100.0)
    return plain if is_color_like(plain) else "gray"


def _draw_robot(axes: Axes, robot: PlacedRobot) -> None:
    from matplotlib.patches import Polygon

    corners = robot.footprint.polygon
    if corners is None:
        angles = np.linspace(0.0, 2.0 * math.pi, 24, endpoint=False)
        radius = robot.footprint.circumscribed_radius
        outline = np.stack((radius * np.cos(angles), radius * np.sin(angles)), axis=1)
    else:
        outline = np.array(corners)
    color = readable_color(robot.color)
    axes.add_patch(
        Polygon(transform_points(robot.pose, outline), facecolor=color, edgecolor="black", linewidth=0.5)
    )
    nose = transform_points(robot.pose, np.array([(0.0, 0.0), (outline[:, 0].max(), 0.0)]))
    axes.plot(nose[:, 0], nose[:, 1], color="black", linewidth=0.8)
