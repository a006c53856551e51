"""What ``scanpilot eval`` and ``scanpilot suite`` do: find who drives, drive, print, write.

Heavy imports wait inside the functions, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanpilot import resources
from scanpilot.configuration import ConfigurationError

if TYPE_CHECKING:
    from scanpilot.evaluation.barn import BarnSuite
    from scanpilot.evaluation.episodes import Episode
    from scanpilot.evaluation.runner import Contender
    from scanpilot.evaluation.suites import Suite
    from scanpilot.robot import RobotSpec

CLASSICAL = ("straight", "dwa")
_DIFFICULTY_EPISODES = 1000


def add_eval(
    commands: Any, told: str = "drive policies through a suite of unseen episodes"
) -> argparse.ArgumentParser:
    """Add the command ``eval`` to these; ``told`` is its help."""
    evaluate: argparse.ArgumentParser = commands.add_parser("eval", help=told)
    evaluate.add_argument(
        "policy",
        nargs="+",
        help="released policies, policy directories, runs of train or baseline train, straight, dwa; "
        "several are compared on the same episodes",
    )
    _add_suite_arguments(evaluate, episodes=500)
    evaluate.add_argument(
        "--robot", help="robot of straight and dwa (default: that of the first learned policy)"
    )
    evaluate.add_argument("--guard", action="store_true", help="drive behind the node's collision guard")
    evaluate.add_argument(
        "--recovery", action="store_true", help="with --guard: and with its recoveries, but for backing up"
    )
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    evaluate.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with everything, trajectories to replay"
    )
    evaluate.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw trajectories of some worlds (PNG)"
    )
    evaluate.set_defaults(run=run_eval)
    return evaluate


def add_suite(commands: Any) -> None:
    """Add the command ``suite`` to these."""
    suite = commands.add_parser("suite", help="the suites of eval and how hard they are")
    _add_suite_arguments(suite, episodes=_DIFFICULTY_EPISODES, name=None)
    suite.add_argument("--robot", default="generic_diff", help="that drives straight")
    suite.add_argument("--measure", action="store_true", help="measure anew: drive straight through them")
    suite.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    suite.set_defaults(run=_suite)


def _add_suite_arguments(parser: argparse.ArgumentParser, episodes: int, name: str | None = "crowd") -> None:
    told = "crowd, clutter, rooms, corridors, office, dynamic, sensors, latency or barn (see scanpilot suite)"
    parser.add_argument("--suite", default=name, help=told)
    parser.add_argument(
        "--episodes", type=int, help=f"for each policy (default: {episodes}; barn: all worlds)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--worlds", type=Path, metavar="PATH", help="for barn: the folder of its SDF worlds, or their .npz"
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="P",
        help="that share the work (default: one a core); results are the same",
    )


def run_eval(args: argparse.Namespace) -> int:
    """Do what ``scanpilot eval`` was asked for; returns the exit code."""
    from scanpilot.evaluation import difficulty, report
    from scanpilot.evaluation.runner import evaluate

    suite = _guarded(find_suite(args.suite, args.worlds), args.guard, args.recovery)
    episodes = _episodes(suite, args.episodes)
    contenders = find_contenders(args.policy, args.robot, suite.name)
    driven = evaluate(contenders, suite, episodes, args.seed, _processes(args.processes))
    known = difficulty.published(suite.name, suite.version)
    results = [
        result(str(name), contender, suite, args.seed, episodes)
        for name, contender, episodes in zip(args.policy, contenders, driven, strict=True)
    ]
    compared = _compared([str(name) for name in args.policy], driven)
    for number, (told, own) in enumerate(zip(results, driven, strict=True), 1):
        report.print_summary(told)
        if args.picture:
            picture = args.picture if len(results) == 1 else _numbered(args.picture, number)
            report.draw_trajectories(own, picture, f"{told['policy']}: {suite.name} v{suite.version}")
            print(f"trajectories: {picture}")
    report.print_paired(compared)
    report.print_difficulty(suite.name, known)
    if args.json:
        told_difficulty = {"difficulty": known}
        data = (
            {**results[0], **told_difficulty}
            if len(results) == 1
            else {"policies": results, "paired": compared, **told_difficulty}
        )
        _write_json(args.json, data)
    if args.html:
        from scanpilot.evaluation.page import write_page

        left_out = write_page(args.html, results, driven, compared, known)
        size = args.html.stat().st_size / 1e6
        print(f"page: {args.html} ({size:.1f} MB)" + (f", {left_out} episodes not drawn" if left_out else ""))
    return 0


def _suite(args: argparse.Namespace) -> int:
    from scanpilot.evaluation import difficulty, report
    from scanpilot.evaluation.suites import SUITES
    from scanpilot.robot import load_robot

    names = [args.suite] if args.suite else [*SUITES]
    found: dict[str, Any] = {}
    for name in names:
        suite = find_suite(name, args.worlds)
        label = f"{suite.name} v{suite.version}"
        if args.measure:
            robot = load_robot(resources.find("robot", args.robot))
            count = _episodes(suite, args.episodes, _DIFFICULTY_EPISODES)
            found[label] = difficulty.measure(suite, robot, count, args.seed, _processes(args.processes))
        else:
            found[label] = difficulty.published(suite.name, suite.version)
        print(f"{label}: {suite.about}")
        report.print_difficulty(suite.name, found[label])
    if args.json:
        _write_json(args.json, found)
    return 0


def _guarded(suite: Suite | BarnSuite, guard: bool, recovery: bool) -> Suite | BarnSuite:
    from scanpilot.evaluation.guarded import Safety
    from scanpilot.recovery import RecoveryConfig

    if not guard:
        if recovery:
            raise ConfigurationError("--recovery is for robots behind the guard: give --guard too")
        return suite
    return replace(suite, safety=Safety(recovery=RecoveryConfig() if recovery else None))


def find_suite(name: str, worlds: Path | None = None) -> Suite | BarnSuite:
    """A suite by its name.

    Args:
        name: as on the command line.
        worlds: of ``barn``.

    Raises:
        ConfigurationError: there is no such suite, or the worlds are missing or not wanted.
    """
    from scanpilot.evaluation import barn
    from scanpilot.evaluation.suites import SUITES

    if name == "barn":
        if worlds is None:
            raise ConfigurationError(
                "suite barn: its worlds are not ours to ship; --worlds says where they are, a folder of its "
                "SDF files or an .npz"
            )
        return barn.load(worlds)
    if name not in SUITES:
        raise ConfigurationError(f"suite {name!r}: expected one of {', '.join(SUITES)}, barn")
    if worlds is not None:
        raise ConfigurationError(f"--worlds is for the suite barn; {name} makes its own")
    return SUITES[name]


def find_contenders(names: Sequence[str], robot: str | None = None, suite: str = "") -> list[Contender]:
    """Who drives, by their names; see ``scanpilot eval --help``.

    Args:
        names: of policies, directories or classical controllers.
        robot: of classical controllers; by default that of the first learned policy, else ``jackal`` for
            barn and ``generic_diff`` for the others.
        suite: that they are to drive.

    Raises:
        FileNotFoundError: nothing has that name.
        ConfigurationError: a name comes twice.
        scanpilot.checkpoint.CheckpointError: a directory holds no usable policy.
    """
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"policies {', '.join(names)}: one comes twice, and would be compared with itself"
        )
    learned = {name: _learned(name) for name in names if name not in CLASSICAL}
    spec = _robot_of_classical(robot, [*learned.values()], suite)
    return [learned[name] if name in learned else _classical(name, spec) for name in names]


def _robot_of_classical(robot: str | None, learned: Sequence[Contender], suite: str) -> RobotSpec:
    from scanpilot.robot import load_robot

    if robot is None and learned:
        return learned[0].robot
    return load_robot(resources.find("robot", robot or ("jackal" if suite == "barn" else "generic_diff")))


def _classical(name: str, robot: RobotSpec) -> Contender:
    from scanpilot.baselines.classical import DynamicWindow
    from scanpilot.evaluation import difficulty
    from scanpilot.evaluation.runner import Named
    from scanpilot.observation import observation_for

    if name == "straight":
        return difficulty.straight(robot)
    observation = observation_for(robot, beams=180, frames=1)
    return Named(name, DynamicWindow(robot, observation), robot, observation)


def _learned(name: str) -> Contender:
    try:
        path = resources.find("policy", name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; classical controllers: {', '.join(CLASSICAL)}") from error
    if (path / "baseline.json").is_file():
        from scanpilot.baselines import run

        return run.load(path)
    from scanpilot.checkpoint import load_policy

    return load_policy(path)


def result(
    name: str, contender: Contender, suite: Suite | BarnSuite, seed: int, driven: Sequence[Episode]
) -> dict[str, Any]:
    """What ``eval --json`` says of one policy."""
    from scanpilot.command import active_components
    from scanpilot.evaluation import barn
    from scanpilot.evaluation.metrics import by_condition, by_world, cluster_interval, summarise

    told: dict[str, Any] = {
        "policy": name,
        "identity": contender.identity,
        "robot": contender.robot.name,
        "suite": suite.name,
        "suite_version": suite.version,
        "about": suite.about,
        "seed": seed,
        **summarise(driven, active_components(contender.robot)),
        "by_condition": by_condition(driven),
        "by_world": by_world(driven),
    }
    if isinstance(suite, barn.BarnSuite):
        scores = barn.scores(driven)
        told["barn_score"] = float(scores.mean())
        told["barn_score_interval"] = cluster_interval(scores, [e.world.name for e in driven])
        told["barn_worlds"], told["barn_reference"] = suite.source, suite.reference
        told["barn_not_as_official"] = barn.differences(contender.robot)
    return told


def _compared(names: Sequence[str], driven: Sequence[Sequence[Episode]]) -> list[dict[str, Any]]:
    from scanpilot.evaluation import paired

    if len(names) < 2:
        return []
    try:
        return paired.compare(dict(zip(names, driven, strict=True)))
    except ValueError as error:
        print(f"no tests of pairs: {error}")
        return []


def _episodes(suite: Suite | BarnSuite, asked: int | None, default: int = 500) -> int:
    if asked is None:
        worlds = getattr(suite, "worlds", None)
        return len(worlds) if worlds is not None else default
    if asked < 1:
        raise ConfigurationError(f"--episodes {asked}: expected at least 1")
    return asked


def _processes(asked: int | None) -> int | None:
    if asked is not None and asked < 1:
        raise ConfigurationError(f"--processes {asked}: expected at least 1")
    return asked


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}_{number}{path.suffix}")


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
