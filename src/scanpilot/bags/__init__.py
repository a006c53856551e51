"""Bags: what robots recorded (rosbag2 and ROS 1) as streams, reports and replay files.

`files` opens a bag, whole or damaged; `salvage` reads what is left of damaged files; `stream` finds
the topics and turns messages into events for `scanpilot.transitions`; `info`, `convert` and `replay`
are the commands of these names. What a robot lived through becomes transitions in
`scanpilot.transitions`, not here. Needs the extra ``bags``, that is the rosbags library.
"""

from __future__ import annotations


class BagError(ValueError):
    """A bag that cannot be used; the message names the file or topic and the reason."""
