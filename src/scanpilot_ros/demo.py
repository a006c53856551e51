"""Robots drive to goals among obstacles, over real ROS 2, and a table says how they did.

One simulator process, one policy node a robot, goals through ``goal_pose``; this process only
watches topics. ``python -m scanpilot_ros.demo`` or ``make demo``. The exit code is 0 only if every
robot arrived without contact.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rich.console import Console
from rich.live import Live
from rich.table import Table
from std_msgs.msg import Bool, Float32

from scanpilot.command import actions_of, active_components
from scanpilot.evaluation.metrics import smoothness
from scanpilot.geometry import relative
from scanpilot.navigator import State
from scanpilot.robot import RobotSpec
from scanpilot.sim.free_space import FreeSpace
from scanpilot.types import DoubleArray, InvalidInput, Pose2D, Twist2D
from scanpilot_ros import convert, qos
from scanpilot_ros.placement import Scene, Start
from scanpilot_ros.simulation import Options, Simulation, isolate

_GOAL_DISTANCE = (4.0, 10.0)
# Round a corner at most: a policy without memory is not asked out of dead ends here.
_DETOUR = 1.2
_GOAL_SPACING = 1.5
_RESEND_SECONDS = 1.0


@dataclass
class Track:
    """What was seen of one robot.

    Attributes:
        start: its name and where it starts, world frame.
        goal: world frame.
        poses: ``(t, x, y)`` rows on the way, simulated seconds and metres.
        commands: received on the way.
        clearance: smallest on the way, metres.
        state, reason: as its policy node says.
        period: seconds between its commands.
        contact: it touched something.
        arrived: simulated seconds from goal to arrival.
    """

    start: Start
    goal: Pose2D
    poses: list[tuple[float, float, float]] = field(default_factory=list)
    commands: list[Twist2D] = field(default_factory=list)
    clearance: float = math.inf
    state: str = "starting"
    reason: str = ""
    period: float = math.nan
    contact: bool = False
    arrived: float | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing more to see."""
        return self.contact or self.arrived is not None

    @property
    def straight(self) -> float:
        """Straight line from start to goal, metres."""
        return math.hypot(self.goal.x - self.start.pose.x, self.goal.y - self.start.pose.y)

    @property
    def distance(self) -> float:
        """From where it is to the goal, metres."""
        if not self.poses:
            return self.straight
        _, x, y = self.poses[-1]
        return math.hypot(self.goal.x - x, self.goal.y - y)

    @property
    def length(self) -> float:
        """Metres driven."""
        if len(self.poses) < 2:
            return 0.0
        steps = np.diff(np.array(self.poses)[:, 1:], axis=0)
        return float(np.hypot(steps[:, 0], steps[:, 1]).sum())


class Watcher(Node):
    """Hands out goals and watches what comes of them."""

    def __init__(self, scene: Scene, goals: Sequence[Pose2D]) -> None:
        super().__init__("demo")
        self.tracks = [Track(start, goal) for start, goal in zip(scene.starts, goals, strict=True)]
        self._begun = False
        self._sent = -math.inf
        self._goal_publishers = []
        self._frames = [f"{prefix}odom" for prefix in scene.prefixes]
        for track, prefix in zip(self.tracks, scene.prefixes, strict=True):
            self._watch(track, prefix)
            self._goal_publishers.append(
                self.create_publisher(PoseStamped, f"{prefix}goal_pose", qos.RELIABLE)
            )

    def _watch(self, track: Track, prefix: str) -> None:
        topics: list[tuple[Any, str, Any, Any]] = [
            (Odometry, "ground_truth", self._on_truth, qos.SENSOR),
            (Twist, "cmd_vel", self._on_command, qos.RELIABLE),
            (Bool, "contact", self._on_contact, qos.SENSOR),
            (Float32, "clearance", self._on_clearance, qos.SENSOR),
            (DiagnosticStatus, "policy_node/status", self._on_status, qos.LATCHED),
        ]
        for kind, name, handler, profile in topics:
            self.create_subscription(
                kind, f"{prefix}{name}", lambda message, h=handler: h(track, message), profile
            )

    @property
    def ready(self) -> bool:
        """Whether every policy node hears its robot and only waits for a goal."""
        return all(t.state == State.NO_GOAL.value and t.reason == "waiting for a goal" for t in self.tracks)

    def send_goals(self) -> None:
        """Publish the goals; again to those who have not set off a while later."""
        now = time.monotonic()
        if now - self._sent < _RESEND_SECONDS:
            return
        self._sent, self._begun = now, True
        for track, publisher, frame in zip(self.tracks, self._goal_publishers, self._frames, strict=True):
            if track.state == State.NO_GOAL.value:
                # Odometry starts at zero where the robot starts.
                goal = relative(track.goal, track.start.pose)
                publisher.publish(convert.pose_message(goal, frame, self.get_clock().now().to_msg()))

    def _on_truth(self, track: Track, message: Odometry) -> None:
        if not self._begun or track.done:
            return
        pose = convert.pose_from(message.pose.pose)
        track.poses.append((convert.seconds(message.header.stamp), pose.x, pose.y))

    def _on_command(self, track: Track, message: Twist) -> None:
        if self._begun and not track.done:
            track.commands.append(convert.twist_from(message))

    def _on_contact(self, track: Track, message: Bool) -> None:
        track.contact |= message.data and self._begun and track.arrived is None

    def _on_clearance(self, track: Track, message: Float32) -> None:
        if self._begun and not track.done:
            track.clearance = min(track.clearance, message.data)

    def _on_status(self, track: Track, message: DiagnosticStatus) -> None:
        values = {v.key: v.value for v in message.values}
        track.state, track.reason = values.get("state", ""), message.message
        track.period = float(values.get("control_period (s)", "nan"))
        if track.state == State.REACHED.value and self._begun and not track.done and track.poses:
            track.arrived = track.poses[-1][0] - track.poses[0][0]


def choose_goals(scene: Scene, seed: int) -> list[Pose2D]:
    """A goal for each robot: free, some way off, hardly round a corner, apart from the others'.

    Raises:
        scanpilot.types.InvalidInput: the world has no such goals.
    """
    space = FreeSpace(scene.world, scene.robot.footprint, turning_radius=scene.robot.turning_radius)
    rng = np.random.default_rng(seed)
    taken: DoubleArray = np.array([s.pose[:2] for s in scene.starts], dtype=np.float64)
    goals: list[Pose2D] = []
    for start in scene.starts:
        goal = _choose_goal(space, start.pose, taken, rng)
        if goal is None:
            raise InvalidInput(f"world {scene.world.name!r}: found no goal for {start.name}")
        goals.append(goal)
        taken = np.concatenate((taken, [goal[:2]]))
    return goals


def _choose_goal(
    space: FreeSpace, start: Pose2D, taken: DoubleArray, rng: np.random.Generator
) -> Pose2D | None:
    low, high = _GOAL_DISTANCE
    for _ in range(500):
        _, goal = space.sample(rng, min_distance=1.0)
        distance = math.hypot(goal[0] - start.x, goal[1] - start.y)
        apart = np.hypot(*(taken - goal[:2]).T).min() > _GOAL_SPACING
        if low < distance < high and apart and space.detour(np.array(start), goal) < _DETOUR:
            return Pose2D(*map(float, goal))
    return None


def drive(watcher: Watcher, simulation: Simulation, timeout: float, console: Console) -> str | None:
    """Watch until every robot is done; returns what went wrong, if anything did.

    Args:
        watcher: of these robots.
        simulation: in which they drive.
        timeout: seconds for starting up, and again for driving.
        console: for the live lines.
    """
    deadline = time.monotonic() + timeout
    driving = False
    printed = time.monotonic()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while True:
            rclpy.spin_once(watcher, timeout_sec=0.05)
            ended = simulation.ended()
            if ended is not None:
                return ended
            if watcher.ready and not driving:
                driving, deadline = True, time.monotonic() + timeout
            if driving:
                watcher.send_goals()
            live.update(_lines(watcher.tracks))
            if not console.is_terminal and time.monotonic() - printed > 2.0:
                printed = time.monotonic()
                console.print(_line(watcher.tracks), soft_wrap=True)
            if driving and all(t.done for t in watcher.tracks):
                return None
            if time.monotonic() > deadline:
                waiting = [f"{t.start.name}: {t.state}, {t.reason}" for t in watcher.tracks if not t.done]
                return f"after {timeout:.0f} s not done: {'; '.join(waiting)}"


def _progress(track: Track) -> str:
    if track.contact:
        return "touched something"
    if track.arrived is not None:
        return f"arrived after {track.arrived:.1f} s"
    return f"{track.state}, {track.distance:.1f} m to go"


def _line(tracks: Sequence[Track]) -> str:
    return "; ".join(f"{t.start.name} {_progress(t)}" for t in tracks)


def _lines(tracks: Sequence[Track]) -> Table:
    table = Table.grid(padding=(0, 2))
    for track in tracks:
        done = 1.0 - min(1.0, track.distance / track.straight)
        bar = "#" * round(20 * done)
        speed = track.commands[-1][0] if track.commands and not track.done else 0.0
        table.add_row(
            track.start.name, f"[{bar:<20}]".replace("[", r"\["), f"{speed:.2f} m/s", _progress(track)
        )
    return table


def results(tracks: Sequence[Track], robot: RobotSpec) -> list[dict[str, Any]]:
    """One row for each robot, as `--json` writes them; metres and seconds."""
    rows = []
    for track in tracks:
        row = {
            "robot": track.start.name,
            "reached": track.arrived is not None and not track.contact,
            "collided": track.contact,
            "time": track.arrived,
            "length": track.length,
            "straight": track.straight,
            "min_clearance": track.clearance,
            "smoothness": _smoothness(track, robot),
        }
        rows.append(row)
    return rows


def _smoothness(track: Track, robot: RobotSpec) -> float:
    """CAPS' Sm of the commands in action units, mean over the components that move this robot."""
    if len(track.commands) < 2:
        return math.nan
    actions = actions_of(np.array(track.commands), robot)
    return float(
        np.mean(
            [smoothness(actions[:, c], 1.0 / track.period) for c in np.flatnonzero(active_components(robot))]
        )
    )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="how they did")
    for heading in ("robot", "reached", "collided", "time", "path / straight", "clearance", "Sm"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["robot"],
            "yes" if row["reached"] else "NO",
            "YES" if row["collided"] else "no",
            "-" if row["time"] is None else f"{row['time']:.1f} s",
            f"{row['length']:.2f} / {row['straight']:.2f} m",
            f"{row['min_clearance']:.2f} m",
            f"{row['smoothness']:.2f}",
        )
    return table


def draw(tracks: Sequence[Track], scene: Scene, path: Path) -> None:
    """The trajectories over the map, as a picture."""
    # Here, since who only watches needs no plotting library.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Circle, Polygon

    figure, axes = pyplot.subplots(figsize=(8, 8))
    for solid in scene.world.solids:
        for loop in solid.loops:
            axes.add_patch(Polygon(loop, closed=True, facecolor="0.6", edgecolor="0.3", linewidth=0.8))
    for disc in scene.world.discs:
        axes.add_patch(Circle((disc.x, disc.y), disc.radius, facecolor="0.6", edgecolor="0.3", linewidth=0.8))
    radius = scene.robot.footprint.circumscribed_radius
    for index, track in enumerate(tracks):
        colour = f"C{index}"
        way = np.array([(track.start.pose.x, track.start.pose.y), *(p[1:] for p in track.poses)])
        axes.plot(way[:, 0], way[:, 1], color=colour, label=f"{track.start.name}: {_progress(track)}")
        axes.add_patch(Circle((float(way[0, 0]), float(way[0, 1])), radius, fill=False, edgecolor=colour))
        axes.add_patch(Circle((float(way[-1, 0]), float(way[-1, 1])), radius, color=colour, alpha=0.7))
        axes.plot(track.goal.x, track.goal.y, marker="*", markersize=14, color=colour, markeredgecolor="k")
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.set_xlabel("x, metres")
    axes.set_ylabel("y, metres")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncol=2, frameon=False)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    args = _parser().parse_args(arguments)
    isolate()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="scanpilot_demo_") as logs:
        options = Options(
            world=args.world,
            policy=args.policy,
            robots=args.robots,
            robot=args.robot,
            seed=args.seed,
            log_dir=args.log_dir or Path(logs),
        )
        try:
            simulation = Simulation(options)
            goals = choose_goals(simulation.scene, args.seed)
        except InvalidInput as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        try:
            console.print(f"{len(goals)} robots in {args.world}, one policy node each: {args.policy}")
            with simulation:
                watcher = Watcher(simulation.scene, goals)
                problem = drive(watcher, simulation, args.timeout, console)
        finally:
            rclpy.shutdown()
    return _conclude(args, watcher.tracks, simulation.scene, problem, console)


def _conclude(
    args: argparse.Namespace, tracks: Sequence[Track], scene: Scene, problem: str | None, console: Console
) -> int:
    rows = results(tracks, scene.robot)
    console.print(_table(rows))
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows, "problem": problem}, indent=2) + "\n")
    draw(tracks, scene, args.out)
    console.print(f"trajectories: {args.out}")
    if problem is not None:
        console.print(f"error: {problem}", style="red", markup=False)
    arrived = sum(row["reached"] for row in rows)
    console.print(f"{arrived} of {len(rows)} arrived without contact")
    return 0 if problem is None and arrived == len(rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scanpilot_ros.demo", description=__doc__)
    parser.add_argument("--policy", default="generic_diff", help="policy directory or released policy")
    parser.add_argument("--world", default="demo", help="world file, shipped world, or clutter:SEED")
    parser.add_argument("--robots", type=int, default=4)
    parser.add_argument("--robot", default="generic_diff", help="YAML file or shipped robot")
    parser.add_argument("--seed", type=int, default=0, help="of goals, and of starts where they are sampled")
    parser.add_argument("--timeout", type=float, default=40.0, help="seconds for start-up, and for driving")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="picture of the trajectories")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--log-dir", type=Path, help="keep each process's output here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
