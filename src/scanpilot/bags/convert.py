"""Bags to replay files: `scanpilot bag convert`; and what to record so that it works."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanpilot import __version__, configuration
from scanpilot.bags import BagError
from scanpilot.bags.files import Bag
from scanpilot.bags.info import MAX_AGE, Description, Mount, describe
from scanpilot.bags.stream import Role, events, find_roles
from scanpilot.observation import ObservationSpec
from scanpilot.replay_file import ReplayWriter
from scanpilot.robot import RobotSpec
from scanpilot.task import TaskConfig
from scanpilot.transitions import Episode, TransitionConfig, TransitionMaker
from scanpilot.types import Pose2D


@dataclass(frozen=True)
class Choices:
    """What the user says where a bag does not, or says it wrongly; ``None`` leaves it to the bag.

    Attributes:
        topics: by role.
        mount: of the lidar in ``base_link``.
        twist_in_parent_frame: odometry states its velocity in the odometry frame.
    """

    topics: dict[Role, str] = dataclasses.field(default_factory=dict)
    mount: Pose2D | None = None
    twist_in_parent_frame: bool | None = None


@dataclass(frozen=True)
class Plan:
    """How one bag is going to be read.

    Attributes:
        description: what was found in it.
        mount: of the lidar, from the user, the bag or the robot's description.
        config: of the transitions.
    """

    description: Description
    mount: Mount
    config: TransitionConfig


def plan(bag: Bag, robot: RobotSpec, choices: Choices, config: TransitionConfig) -> Plan:
    """Look through a bag and decide how to read it.

    Raises:
        BagError: it lacks what a transition needs; the message says what.
    """
    roles = find_roles(bag, choices.topics)
    description = describe(bag, roles, choices.mount, config.max_age or MAX_AGE)
    if not description.usable_seconds > robot.control_period:
        reasons = "; ".join(description.problems[:3])
        raise BagError(f"{bag.path}: nothing that could be learned from: {reasons}")
    mount = description.mount
    if mount.source == "unknown":
        mount = Mount(robot.lidar.mount, False, "unknown")
    if choices.twist_in_parent_frame is not None:
        description.stream = dataclasses.replace(
            description.stream, twist_in_parent_frame=choices.twist_in_parent_frame
        )
    if "topic" in config.contacts and len(config.contacts) > 1:
        # Who has a bumper need not guess; who has none must.
        guessing = tuple(c for c in config.contacts if c != "topic")
        config = dataclasses.replace(config, contacts=("topic",) if roles.contact else guessing)
    return Plan(description, mount, config)


@dataclass
class Tally:
    """What became of one bag.

    Attributes:
        transitions, episodes: written.
        sources: transitions by where their action, goal and contact are from.
        ends: episodes by how they ended.
        cuts: how often the stream was cut, by reason.
        cut_times: stamp and reason of the first few.
        left_out: messages that could not be used, by reason.
    """

    transitions: int = 0
    episodes: int = 0
    sources: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    ends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    cuts: dict[str, int] = dataclasses.field(default_factory=dict)
    cut_times: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def count(self, episode: Episode) -> None:
        """Add an episode."""
        self.transitions += len(episode)
        self.episodes += 1
        for step in episode.steps:
            self.sources[f"action from {step.action_source.name.lower()}"] += 1
            if step.contact:
                self.sources[f"contact by {step.contact.name.lower()}"] += 1
        self.sources[f"goal from {episode.goal_source.name.lower()}"] += len(episode)
        end = "reached" if episode.result.reached[-1] else "collided"
        self.ends[end if episode.result.terminated[-1] else "truncated"] += 1


def convert(
    paths: Sequence[Path],
    out: Path,
    robot: RobotSpec,
    observation: ObservationSpec,
    task: TaskConfig,
    choices: Choices | None = None,
    config: TransitionConfig | None = None,
) -> list[Tally]:
    """Write one replay file of all bags.

    Memory does not grow with the bags: a bag is read twice as a stream, and transitions go to disk as
    they come.

    Raises:
        BagError: a bag cannot be used, or not one transition came out.
        OSError: the disk is full, read-only, ...; what was there before still stands.
    """
    choices, config = choices or Choices(), config or TransitionConfig()
    provenance: dict[str, Any] = {
        "scanpilot": __version__,
        "conversion": configuration.to_dict(config),
    }
    tallies: list[Tally] = []
    with ReplayWriter(out, robot, observation, task, provenance) as writer:
        for number, path in enumerate(paths):
            with Bag(path) as bag:
                found = plan(bag, robot, choices, config)
                tally = _convert_one(bag, found, number, writer, (robot, observation, task))
                tallies.append(tally)
                writer.note_bag(_provenance(path, found, tally))
        if not writer.transitions:
            reasons = "; ".join(f"{reason} ({n})" for t in tallies for reason, n in t.cuts.items())
            names = ", ".join(map(str, paths))
            raise BagError(f"{names}: not one transition came out: {reasons or 'the robot stood still'}")
    return tallies


def _convert_one(
    bag: Bag,
    found: Plan,
    number: int,
    writer: ReplayWriter,
    learner: tuple[RobotSpec, ObservationSpec, TaskConfig],
) -> Tally:
    mount, tally = found.mount, Tally()
    maker = TransitionMaker(*learner, mount.pose, mount.flipped, found.config, seed_offset=number)

    def write(episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            writer.add(episode, number)
            tally.count(episode)

    for event in events(bag, found.description.roles, found.description.stream, tally.left_out):
        write(maker.add(event))
    write(maker.finish())
    tally.cuts = dict(maker.assembler.cuts)
    tally.cut_times = maker.assembler.cut_times
    return tally


def _provenance(path: Path, found: Plan, tally: Tally) -> dict[str, Any]:
    mount = found.mount
    return {
        "path": str(path.resolve()),
        "sha256": _digest(path),
        "roles": {k: v for k, v in dataclasses.asdict(found.description.roles).items() if k != "others"},
        "mount": {**mount.pose._asdict(), "flipped": mount.flipped, "source": mount.source},
        "stream": dataclasses.asdict(found.description.stream),
        "contacts": list(found.config.contacts),
        "problems": found.description.problems,
        "transitions": tally.transitions,
        "sources": dict(tally.sources),
        "ends": dict(tally.ends),
        "cuts": tally.cuts,
        "left_out": dict(tally.left_out),
    }


def _digest(path: Path) -> str:
    """Of the bag's files, in the order of their names."""
    whole = hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as opened:
                while block := opened.read(1 << 20):
                    whole.update(block)
    return whole.hexdigest()


def record_command(robot: RobotSpec, namespace: str = "") -> str:
    """The ``ros2 bag record`` line for a robot with the policy node's topic names."""
    prefix = f"/{namespace.strip('/')}" if namespace.strip("/") else ""
    own = ("scan", "odom", "cmd_vel", "goal_pose", "plan", "contact", "policy_node/status")
    topics = [f"{prefix}/{name}" for name in own] + ["/tf", "/tf_static", "/clock"]
    return f"ros2 bag record -s mcap -o {robot.name}_$(date +%Y%m%d_%H%M%S) {' '.join(topics)}"
