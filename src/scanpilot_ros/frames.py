"""Where frames lie relative to each other: through tf2 where it is there, and what is left without it.

Look-ups take the newest transform known: a goal in a map follows map -> odom as it moves, and
stamps of two machines whose clocks disagree do no harm.
"""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import Transform
from rclpy.node import Node
from rclpy.time import Time

from scanpilot.types import ORIGIN, InvalidInput, Pose2D
from scanpilot_ros import convert

try:
    import tf2_ros
except ImportError:
    # The ROS wheels lack it. Goals in the odometry or robot frame need no look-up.
    tf2_ros = None


class Frames:
    """Look-ups between frames for one node.

    Args:
        node: whose executor feeds the transforms.
        listen: whether to use tf2 where it is there.
    """

    def __init__(self, node: Node, listen: bool = True) -> None:
        self._buffer: Any = None
        if tf2_ros is not None and listen:
            self._buffer = tf2_ros.Buffer()
            self._listener = tf2_ros.TransformListener(self._buffer, node, spin_thread=False)

    @property
    def has_tf(self) -> bool:
        """Whether tf2 is there and used."""
        return self._buffer is not None

    def known(self) -> bool:
        """Whether anybody has published a transform."""
        return self.has_tf and bool(self._buffer.all_frames_as_yaml().strip(" []{}\n"))

    def origin_in(self, odometry_frame: str, frame: str) -> Pose2D:
        """Where the origin of the frame of a goal lies in the odometry frame, as things stand now.

        Raises:
            scanpilot.types.InvalidInput: nobody says.
        """
        if frame == odometry_frame:
            return ORIGIN
        if not self.has_tf:
            raise InvalidInput(
                f"it is in frame {frame!r}, and without tf2_ros only goals in the odometry frame "
                f"{odometry_frame!r} or the robot's own frame can be followed"
            )
        return convert.planar_from(self._look_up(odometry_frame, frame))

    def mount(self, base_frame: str, lidar_frame: str) -> tuple[Pose2D, bool]:
        """Pose of a lidar in the robot, and whether it hangs upside down.

        Raises:
            scanpilot.types.InvalidInput: TF does not say.
        """
        return convert.mount_from(self._look_up(base_frame, lidar_frame))

    def _look_up(self, target: str, source: str) -> Transform:
        try:
            return self._buffer.lookup_transform(target, source, Time()).transform
        except tf2_ros.TransformException as error:
            raise InvalidInput(f"TF does not know frame {source!r} in {target!r}: {error}") from error
