"""A picture of one world that follows its robots: where they are, where to, and what they see.

matplotlib is imported when the first picture is drawn, and pyplot only for a window.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from scanpilot.geometry import transform_points
from scanpilot.robot import Footprint
from scanpilot.sim.drawing import draw_world
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray, FloatArray, Pose2D

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES, _DPI = 4.8, 100
_CIRCLE = np.linspace(0.0, 2.0 * np.pi, 25)[:-1]

logger = logging.getLogger(__name__)


class LiveView:
    """Draws robots in a world again and again, into an image or a window.

    Args:
        footprint: of every robot.
        angles: ``(n,)`` directions of the scan's beams in ``base_link``, radians.
        range_max: metres; a range that long met nothing and is not drawn.
        window: whether to show a window; otherwise only images are made.
    """

    def __init__(self, footprint: Footprint, angles: DoubleArray, range_max: float, window: bool) -> None:
        self._outline = _outline(footprint)
        self._directions = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        self._range_max = range_max
        self._figure = _open_window() if window else _new_figure()
        self._window = window
        self._world: World | None = None
        self._moving: list[Any] = []

    def draw(self, world: World, poses: DoubleArray, goals: DoubleArray, scans: FloatArray) -> None:
        """Draw what is now.

        Args:
            world: that the robots are in.
            poses, goals: ``(R, 3)`` x, y, yaw in the world frame.
            scans: ``(R, n)`` newest ranges, metres.
        """
        if world is not self._world:
            self._draw_still(world)
        for artist in self._moving:
            artist.remove()
        self._moving = []
        axes = self._figure.axes[0]
        for robot, (pose, goal, scan) in enumerate(zip(poses, goals, scans, strict=True)):
            color = f"C{robot % 10}"
            at = Pose2D(*pose)
            points = transform_points(at, scan[:, None] * self._directions)[scan < self._range_max]
            self._moving += axes.plot(*points.T, ".", color=color, markersize=1.5, alpha=0.7)
            self._moving += axes.fill(*transform_points(at, self._outline).T, color=color)
            nose = np.array([(0.0, 0.0), (self._outline[:, 0].max(), 0.0)])
            self._moving += axes.plot(*transform_points(at, nose).T, color="black", linewidth=1.0)
            self._moving += axes.plot(goal[0], goal[1], "*", color=color, markersize=9.0)
        self._figure.canvas.draw()

    def image(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """``(480, 480, 3)`` what was last drawn."""
        canvas: Any = self._figure.canvas
        # Copied, because the canvas draws into the same memory again.
        pixels: np.ndarray[Any, np.dtype[np.uint8]] = np.array(canvas.buffer_rgba(), dtype=np.uint8)
        image: np.ndarray[Any, np.dtype[np.uint8]] = pixels[:, :, :3]
        return image

    def show(self, seconds: float) -> None:
        """Keep the window alive for so long."""
        if self._figure.canvas.required_interactive_framework:
            self._figure.canvas.start_event_loop(seconds)

    def close(self) -> None:
        """Close the window."""
        if self._window:
            from matplotlib import pyplot

            pyplot.close(self._figure)

    def _draw_still(self, world: World) -> None:
        self._figure.clear()
        axes = self._figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        draw_world(axes, world)
        self._world, self._moving = world, []


def _outline(footprint: Footprint) -> DoubleArray:
    if footprint.polygon is not None:
        return np.array(footprint.polygon, dtype=np.float64)
    return footprint.circumscribed_radius * np.stack((np.cos(_CIRCLE), np.sin(_CIRCLE)), axis=1)


def _new_figure() -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES, _INCHES), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def _open_window() -> Figure:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(_INCHES, _INCHES), dpi=_DPI)
    if figure.canvas.required_interactive_framework:
        figure.show()
    else:
        logger.warning("no window: matplotlib's backend %s cannot show one", pyplot.get_backend())
    return figure
