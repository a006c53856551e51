"""`scanpilot bag info`, `convert` and `replay`: reads arguments, calls the rooms, prints.

Heavy imports wait inside the commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from scanpilot import resources
from scanpilot.bags import BagError
from scanpilot.configuration import ConfigurationError
from scanpilot.types import Pose2D

if TYPE_CHECKING:
    from scanpilot.bags.convert import Choices, Tally
    from scanpilot.bags.info import Description
    from scanpilot.bags.stream import Role
    from scanpilot.observation import ObservationSpec
    from scanpilot.robot import RobotSpec
    from scanpilot.task import TaskConfig

_ROLES: tuple[Role, ...] = ("scan", "odom", "cmd", "goal", "contact")


def add_to(commands: Any) -> None:
    """Add ``bag`` to the commands of `scanpilot.cli`."""
    bag = commands.add_parser("bag", help="learn from what robots recorded: rosbag2 and ROS 1 bags")
    actions = bag.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_info(actions)
    _add_convert(actions)
    _add_replay(actions)


def _refusing(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, with what is wrong with a bag said in one line."""

    @functools.wraps(run)
    def refuse(args: argparse.Namespace) -> int:
        try:
            import rosbags  # noqa: F401
        except ModuleNotFoundError:
            print("scanpilot bag: rosbags is not installed: pip install 'scanpilot[bags]'", file=sys.stderr)
            return 1
        try:
            return run(args)
        except BagError as error:
            print(f"scanpilot bag {args.action}: {error}", file=sys.stderr)
            return 1

    return refuse


def _add_choices(parser: Any) -> None:
    told = parser.add_argument_group("what the bag does not say, or says wrongly")
    for role in _ROLES:
        told.add_argument(f"--{role}", metavar="TOPIC", help=f"topic taken as {role} (default: guessed)")
    told.add_argument(
        "--mount",
        type=float,
        nargs=3,
        metavar=("X", "Y", "YAW"),
        help="of the lidar in base_link, metres and radians (default: from TF, else the robot's description)",
    )
    told.add_argument(
        "--odom-twist",
        choices=("child", "parent"),
        help="frame of odometry's velocity (default: found by comparing it with how the pose changes)",
    )
    told.add_argument(
        "--max-age",
        type=float,
        metavar="SECONDS",
        help="older scans and odometry are a gap (default: 1.75 control periods, as for the live node)",
    )


def _choices(args: argparse.Namespace) -> Choices:
    from scanpilot.bags.convert import Choices

    return Choices(
        topics={role: getattr(args, role) for role in _ROLES if getattr(args, role)},
        mount=Pose2D(*args.mount) if args.mount else None,
        twist_in_parent_frame=None if args.odom_twist is None else args.odom_twist == "parent",
    )


def _add_info(actions: Any) -> None:
    info = actions.add_parser("info", help="what is in bags, and whether a policy can learn from it")
    info.add_argument("bag", nargs="+", type=Path, metavar="BAG")
    info.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    info.add_argument("--picture", type=Path, metavar="PNG", help="draw the path and the scans over it")
    _add_choices(info)
    info.set_defaults(run=_refusing(_info))


def _info(args: argparse.Namespace) -> int:
    from scanpilot.bags.files import Bag
    from scanpilot.bags.info import MAX_AGE, describe
    from scanpilot.bags.picture import draw
    from scanpilot.bags.stream import find_roles

    choices = _choices(args)
    documents: list[dict[str, Any]] = []
    refused = 0
    for path in args.bag:
        try:
            with Bag(path) as bag:
                roles = find_roles(bag, choices.topics)
                description = describe(bag, roles, choices.mount, args.max_age or MAX_AGE)
        except BagError as error:
            # The others are described all the same.
            print(f"scanpilot bag info: {error}", file=sys.stderr)
            empty = {"topics": [], "scan": {}, "rates": {}, "usable_seconds": 0.0}
            documents.append({"bag": str(path), **empty, "problems": [str(error)], "refused": True})
            refused += 1
            continue
        documents.append(description.document)
        _print_description(description)
        if args.picture:
            several = len(args.bag) > 1
            picture = (
                args.picture.with_stem(f"{args.picture.stem}_{len(documents)}") if several else args.picture
            )
            draw(description, picture, path.name)
            print(f"picture: {picture}")
    if args.json:
        _write_json(args.json, documents[0] if len(documents) == 1 else {"bags": documents})
    return 1 if refused else 0


def _print_description(description: Description) -> None:
    from rich.console import Console
    from rich.table import Table

    document, console = description.document, Console()
    table = Table(title=f"{document['bag']}: {document['format']}, {document['seconds']:.1f} s")
    for column in ("topic", "type", "messages", "Hz", "role"):
        table.add_column(column, overflow="fold")
    for topic in document["topics"]:
        hz = document["rates"].get(topic["name"], {}).get("hz")
        role = topic["role"] or ("" if topic["readable"] else "(cannot be decoded)")
        rate = "" if hz is None else f"{hz:.1f}"
        table.add_row(topic["name"], topic["type"], str(topic["count"]), rate, role)
    console.print(table)
    if scan := document["scan"]:
        console.print(_scan_line(scan), highlight=False)
    console.print(f"usable for learning: {document['usable_seconds']:.1f} s", highlight=False)
    for problem in document["problems"]:
        console.print(f"- {problem}", highlight=False, markup=False)


def _scan_line(scan: dict[str, Any]) -> str:
    if "beams" not in scan:
        return "scan: no usable message"
    mount = scan["mount"]
    return (
        f"scan: {scan['beams']} beams from {scan['angle_min']:.3f} to {scan['angle_max']:.3f} rad, "
        f"{scan['range_min']:g} to {scan['range_max']:g} m; lidar at x {mount['x']:.3f} m, "
        f"y {mount['y']:.3f} m, yaw {mount['yaw']:.3f} rad ({mount['source']})"
    )


def _add_convert(actions: Any) -> None:
    convert = actions.add_parser("convert", help="bags to a replay file that `scanpilot train` learns from")
    convert.add_argument("bag", nargs="*", type=Path, metavar="BAG")
    convert.add_argument("--robot", default="generic_diff", help="name of a shipped robot, or its YAML file")
    convert.add_argument("--out", type=Path, metavar="FILE", help="replay file to write")
    convert.add_argument(
        "--policy", help="convert for this policy's robot and observation; replaces --robot and --config"
    )
    convert.add_argument("--config", type=Path, help="training configuration (default: train.yaml)")
    convert.add_argument(
        "--goals",
        choices=("auto", "topic", "hindsight", "both"),
        default="auto",
        help="goals that were set, places the robot later went to, or (auto) the latter where none was set",
    )
    convert.add_argument(
        "--contacts",
        nargs="+",
        choices=("topic", "stall", "scan"),
        help="who tells contacts (default: the contact topic if there is one, else stall and scan)",
    )
    convert.add_argument("--seed", type=int, default=0, help="of the choice of hindsight goals")
    convert.add_argument("--json", type=Path, metavar="FILE", help="write what became of the bags")
    convert.add_argument(
        "--record",
        action="store_true",
        help="only print the ros2 bag record line for the robot",
    )
    convert.add_argument("--namespace", default="", help="of the robot's topics, for --record")
    _add_choices(convert)
    convert.set_defaults(run=_refusing(_convert))


def _convert(args: argparse.Namespace) -> int:
    from scanpilot.bags.convert import convert, record_command
    from scanpilot.robot import load_robot
    from scanpilot.transitions import TransitionConfig

    if args.record:
        print(record_command(load_robot(resources.find("robot", args.robot)), args.namespace))
        return 0
    if not args.bag or not args.out:
        raise ConfigurationError("BAG and --out are needed (or --record)")
    try:
        config = TransitionConfig(max_age=args.max_age, goals=args.goals, seed=args.seed)
        if args.contacts:
            config = dataclasses.replace(config, contacts=tuple(args.contacts))
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    tallies = convert(args.bag, args.out, *_learner(args), _choices(args), config)
    for path, tally in zip(args.bag, tallies, strict=True):
        _print_tally(path, tally)
    print(f"{sum(t.transitions for t in tallies)} transitions in {args.out}")
    if args.json:
        _write_json(args.json, {"out": str(args.out), "bags": [_tally_document(t) for t in tallies]})
    return 0


def _learner(args: argparse.Namespace) -> tuple[RobotSpec, ObservationSpec, TaskConfig]:
    """What the transitions are for: what the policy was trained as, or what a training run would be."""
    from scanpilot import configuration
    from scanpilot.checkpoint import MANIFEST, read_manifest
    from scanpilot.observation import observation_for
    from scanpilot.robot import load_robot
    from scanpilot.task import TaskConfig

    if args.policy:
        directory = resources.find("policy", args.policy)
        inner = directory / "policy"
        manifest = read_manifest(inner if (inner / MANIFEST).is_file() else directory)
        trained = manifest.training.get("config", {})
        task = configuration.from_dict(TaskConfig, trained.get("task", {}), f"{directory} (task)")
        return manifest.robot, manifest.observation, task
    robot = load_robot(resources.find("robot", args.robot))
    # Of the configuration only these: the rest is the learner's, and knowing it would load torch.
    path = args.config or resources.root() / "config" / "train.yaml"
    sections = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    task = configuration.from_dict(TaskConfig, sections.get("task", {}), f"{path} (task)")
    try:
        return robot, observation_for(robot, **sections.get("observation", {})), task
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} (observation): {error}") from error


def _print_tally(path: Path, tally: Tally) -> None:
    print(f"{path}: {tally.transitions} transitions in {tally.episodes} episodes")
    for title, counts in (("", dict(tally.sources)), ("episodes ", dict(tally.ends)), ("cut: ", tally.cuts)):
        for what, number in counts.items():
            print(f"  {title}{what}: {number}")
    for what, number in tally.left_out.items():
        print(f"  left out {number} messages: {what}")


def _tally_document(tally: Tally) -> dict[str, Any]:
    return {
        "transitions": tally.transitions,
        "episodes": tally.episodes,
        "sources": dict(tally.sources),
        "ends": dict(tally.ends),
        "cuts": tally.cuts,
        "left_out": dict(tally.left_out),
    }


def _add_replay(actions: Any) -> None:
    replay = actions.add_parser("replay", help="what a policy would have commanded where a robot drove")
    replay.add_argument("bag", type=Path, metavar="BAG")
    replay.add_argument("--policy", required=True, help="a released policy, a policy directory or a run")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page with a scrubber")
    replay.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    replay.add_argument(
        "--at",
        type=float,
        nargs=3,
        metavar=("X", "Y", "YAW"),
        help="goal in the odometry frame (default: as set, else where the robot was 5 s later)",
    )
    replay.add_argument("--begin", type=float, default=0.0, metavar="SECONDS", help="look from here on")
    _add_choices(replay)
    replay.set_defaults(run=_refusing(_replay))


def _replay(args: argparse.Namespace) -> int:
    from scanpilot.bags.replay import replay, write_html
    from scanpilot.checkpoint import load_policy
    from scanpilot.transitions import TransitionConfig

    path = resources.find("policy", args.policy)
    training = path / "training"
    result, summary = replay(
        args.bag,
        load_policy(path),
        _choices(args),
        TransitionConfig(max_age=args.max_age),
        Pose2D(*args.at) if args.at else None,
        args.begin,
        training if training.is_dir() else None,
    )
    print(json.dumps(summary, indent=2))
    if args.html:
        write_html(result, summary, args.html)
        print(f"report: {args.html}")
    if args.json:
        _write_json(args.json, summary)
    return 0


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
