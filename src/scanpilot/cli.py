"""The ``scanpilot`` command: reads arguments, calls the room that does the work, prints.

Heavy imports wait inside the commands, so that ``--help`` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scanpilot import __version__, evaluating, resources
from scanpilot.bags import commands as bag_commands
from scanpilot.baselines import commands as baseline_commands
from scanpilot.configuration import ConfigurationError
from scanpilot.types import InvalidInput


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    parser = _parser()
    args, passed_on = parser.parse_known_args(arguments)
    args.passed_on = passed_on
    if args.passed_on and args.run not in (_sim, _doctor):
        parser.error(f"unrecognized arguments: {' '.join(args.passed_on)}")
    # Before torch is imported: its threads spin while they wait for each other, by default so long that
    # two of them on cores with other work come to a crawl.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    from scanpilot.checkpoint import CheckpointError
    from scanpilot.sim.world import WorldFileError

    try:
        return int(args.run(args))
    except (
        ConfigurationError,
        CheckpointError,
        WorldFileError,
        InvalidInput,
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
    ) as error:
        print(f"scanpilot {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"scanpilot {args.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scanpilot", description="A learned local navigator for ROS 2 robots."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands)
    evaluating.add_eval(commands)
    evaluating.add_suite(commands)
    baseline_commands.add_to(commands, evaluating.run_eval, evaluating.add_eval)
    _add_release(commands)
    _add_export(commands)
    _add_sim(commands)
    _add_world(commands)
    _add_bench(commands)
    _add_doctor(commands)
    bag_commands.add_to(commands)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="train a policy for a robot in the embedded simulator")
    train.add_argument("--robot", default="generic_diff", help="name of a shipped robot, or its YAML file")
    train.add_argument("--config", type=Path, help="training configuration (default: the shipped train.yaml)")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of it")
    budget = train.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=_positive, help="train for so long")
    budget.add_argument(
        "--steps", type=int, help="train for so many robot steps; reproducible to the last digit"
    )
    train.add_argument(
        "--until-success",
        type=_positive,
        metavar="FRACTION",
        help="stop early, at a validation with this success (as 0.95)",
    )
    train.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="collect on the Ray cluster at this address; local starts one on this machine",
    )
    train.add_argument("--workers", type=int, default=2, help="with --ray; one core each")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--out", type=Path, required=True, help="directory of the run")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out")
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    from scanpilot import training

    training.train(
        robot=resources.find("robot", args.robot),
        config=args.config or resources.root() / "config" / "train.yaml",
        overrides=args.set,
        minutes=args.minutes,
        steps=args.steps,
        seed=args.seed,
        out=args.out,
        resume=args.resume,
        until_success=args.until_success,
        ray=args.ray,
        workers=args.workers,
    )
    return 0


def _add_release(commands: Any) -> None:
    release = commands.add_parser("release", help="evaluate a run's policy and write it with a model card")
    release.add_argument("run_directory", type=Path, metavar="RUN")
    release.add_argument(
        "directory", type=Path, metavar="DIRECTORY", help="of the released policy, as models/my_robot"
    )
    release.add_argument("--episodes", type=int, default=1000)
    release.add_argument("--seed", type=int, default=0)
    release.set_defaults(run=_release)


def _release(args: argparse.Namespace) -> int:
    from scanpilot.release import release

    policy = release(
        args.run_directory, args.directory, args.episodes, args.seed, suites=("crowd", "clutter")
    )
    print(f"released {policy.name} ({policy.identity}) in {args.directory}")
    from scanpilot import export

    try:
        file, difference = export.to_onnx(args.directory, None)
    except InvalidInput as error:
        print(f"without an ONNX file: {error}")
    else:
        print(f"{file}: actions differ from torch's by {difference:.1e} at most")
    return 0


def _add_export(commands: Any) -> None:
    export = commands.add_parser("export", help="write a policy as ONNX, TorchScript or .pth files")
    export.add_argument("policy", help="name of a released policy, a policy directory or a run")
    export.add_argument(
        "--onnx",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE",
        help="without FILE: into the policy directory, for nodes with backend:=onnx",
    )
    export.add_argument("--torchscript", type=Path, metavar="FILE")
    export.add_argument("--pth", type=Path, metavar="DIRECTORY", help="one file of weights a network")
    export.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    if args.onnx is None and args.torchscript is None and args.pth is None:
        raise ConfigurationError("nothing to export: give --onnx, --torchscript or --pth")
    from scanpilot import export

    policy = resources.find("policy", args.policy)
    if args.onnx is not None:
        file, difference = export.to_onnx(policy, args.onnx if args.onnx.name else None)
        print(f"{file}: actions differ from torch's by {difference:.1e} at most")
    if args.torchscript is not None:
        difference = export.to_torchscript(policy, args.torchscript)
        print(f"{args.torchscript}: actions differ from the policy's by {difference:.1e} at most")
    if args.pth is not None:
        print(", ".join(map(str, export.to_pth(policy, args.pth))))
    return 0


def _add_sim(commands: Any) -> None:
    sim = commands.add_parser(
        "sim", help="what simulation.launch.py does, for machines without the ros2 command", add_help=False
    )
    sim.set_defaults(run=_sim)


def _sim(args: argparse.Namespace) -> int:
    # A program of its own, since only scanpilot_ros may know ROS: the core never imports it.
    import subprocess

    return subprocess.call([sys.executable, "-m", "scanpilot_ros.simulation", *args.passed_on])


def _add_world(commands: Any) -> None:
    world = commands.add_parser("world", help="draw worlds, and convert them to Stage's")
    actions = world.add_subparsers(dest="action", required=True, metavar="ACTION")
    source = "a world file (.world, .sdf, .yaml), name of a shipped one, or a generated one such as maze:7"
    show = actions.add_parser("show", help="draw a world and the robots that its file places")
    show.add_argument("world", metavar="WORLD", help=source)
    show.add_argument("--out", type=Path, required=True, metavar="PNG", help="picture to write")
    show.set_defaults(run=_show_world)
    convert = actions.add_parser("convert", help="write a world as a Stage file, without its robots")
    convert.add_argument("world", metavar="WORLD", help=source)
    convert.add_argument("--out", type=Path, required=True, metavar="FILE.world", help="file to write")
    convert.set_defaults(run=_convert_world)


def _show_world(args: argparse.Namespace) -> int:
    from scanpilot.sim import drawing, sources

    if args.out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigurationError(f"--out {args.out}: expected a name that ends in .png, .pdf or .svg")
    world = sources.named_world(args.world)
    drawing.save_world(world, args.out)
    x0, y0, x1, y1 = world.bounds
    print(
        f"{world.name}: {x1 - x0:.1f} m by {y1 - y0:.1f} m, {len(world.solids) + len(world.discs)} bodies,"
        f" {len(world.robots)} robots; picture: {args.out}"
    )
    return 0


def _convert_world(args: argparse.Namespace) -> int:
    from scanpilot.sim import sources
    from scanpilot.sim.world_file import write_world_file

    if args.out.suffix != ".world":
        raise ConfigurationError(f"--out {args.out}: expected a name that ends in .world")
    world = sources.named_world(args.world)
    write_world_file(world, args.out)
    left_out = f"; left out {len(world.robots)} robots" if world.robots else ""
    print(f"{world.name}: {len(world.solids) + len(world.discs)} bodies in {args.out}{left_out}")
    return 0


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench", help="measure the simulator, the learner and inference on this machine"
    )
    bench.add_argument(
        "what",
        nargs="?",
        choices=("sim", "learner", "inference", "node", "ray"),
        help="only this (default: all but node, which measures a running policy node and needs ROS, and ray)",
    )
    bench.add_argument("--threads", type=int, nargs="+", default=[1], help="the learner takes the first")
    bench.add_argument("--policy", help="for inference and node: a released policy or a policy directory")
    bench.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="for ray, in turn")
    bench.add_argument("--seconds", type=_positive, default=1.0, help="for each measurement")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    sim = bench.add_argument_group(
        "sim", "every combination of these, IR-SIM and navground on the same scenes where they are installed"
    )
    sim.add_argument("--robots", type=int, nargs="+", help="in all worlds together (default: 1 8 44 512)")
    sim.add_argument("--beams", type=int, nargs="+", help="of a robot's lidar (default: 180 512)")
    sim.add_argument(
        "--worlds",
        type=int,
        nargs="+",
        help="side by side (default: one up to 44 robots, else one for eight)",
    )
    sim.add_argument(
        "--world", nargs="+", metavar="WORLD", help="generators, names or files of worlds (default: clutter)"
    )
    sim.add_argument(
        "--full", action="store_true", help="default to robots 1 8 44 512 4096, beams 180 360 512 1080"
    )
    sim.add_argument(
        "--acceptance",
        action="store_true",
        help="instead, the figures the simulator was promised to reach, in --world (one; default: demo)",
    )
    sim.add_argument(
        "--device",
        metavar="DEVICE",
        help="measure the kernels for CUDA too, on cuda, cuda:1 or, for comparison, the cpu (extra 'cuda')",
    )
    sim.add_argument("--plot", type=Path, metavar="PNG", help="draw the rows")
    bench.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    from scanpilot import bench

    results: dict[str, Any] = {"machine": bench.machine()}
    if args.what in (None, "sim"):
        results.update(_bench_sim(args))
    if args.what in (None, "learner"):
        results.update(bench.bench_learner(args.seconds, args.threads[0]))
    if args.what in (None, "inference"):
        policy = resources.find("policy", args.policy or "generic_diff")
        results.update(bench.bench_inference(policy, args.seconds))
    if args.what == "ray":
        results.update(bench.bench_ray(args.workers, args.seconds))
    if args.what == "node":
        results["node"] = _bench_node(args)
    tabled = ("rows", "figures")
    print(json.dumps({key: value for key, value in results.items() if key not in tabled}, indent=2))
    if args.json:
        _write_json(args.json, results)
    return 0


def _bench_node(args: argparse.Namespace) -> Any:
    # A program of its own, since only scanpilot_ros may know ROS: the core never imports it.
    import subprocess

    command = [sys.executable, "-m", "scanpilot_ros.node_benchmark"]
    command += ["--policy", args.policy or "generic_diff", "--seconds", str(args.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise InvalidInput("the policy node could not be measured, see above")
    return json.loads(done.stdout)


def _bench_sim(args: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import replace

    from scanpilot.sim import benchmark

    if args.acceptance:
        figures, rows = benchmark.acceptance(args.world[0] if args.world else "demo", args.seconds)
    else:
        given = {name: getattr(args, name) for name in ("robots", "beams", "threads", "worlds", "world")}
        sizes = replace(
            benchmark.FULL if args.full else benchmark.Sizes(), **{k: v for k, v in given.items() if v}
        )
        figures, rows = [], list(benchmark.run(sizes, args.seconds, args.device))
    benchmark.print_rows(rows)
    if figures:
        benchmark.print_figures(figures)
    if args.plot:
        benchmark.plot(rows, args.plot)
        print(f"plot: {args.plot}")
    return benchmark.as_json(rows, figures)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="look at this machine and at the running robot, and say what to mend; moves nothing",
        add_help=False,
    )
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    import importlib.util
    import subprocess

    if importlib.util.find_spec("rclpy") is not None:
        return subprocess.call([sys.executable, "-m", "scanpilot_ros.doctor", *args.passed_on])
    from scanpilot import doctor

    findings = list(doctor.examine_environment(os.environ))
    doctor.show(findings)
    return doctor.exit_code(findings)


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
