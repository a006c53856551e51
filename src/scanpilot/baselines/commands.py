"""`scanpilot baseline train`, `eval` and `export`: reads arguments, calls the rooms, prints.

Heavy imports wait inside the commands.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanpilot.configuration import ConfigurationError

_NUMBERS: dict[str, tuple[type, str]] = {
    "learning_rate": (float, "of all networks"),
    "gamma": (float, "discount of a step (default: 0.99)"),
    "gae_lambda": (float, "of generalised advantage estimation: a2c, ppo, a3c"),
    "entropy": (float, "weight of the policy's entropy: a2c, ppo, a3c"),
    "envs": (int, "environments in step (a3c: of each worker)"),
    "rollout": (int, "steps of each environment between two updates: a2c, ppo, a3c"),
    "batch": (int, "transitions of an update: sac, td3, ddpg, ppo"),
    "gradient_steps": (int, "updates after each step of all environments: sac, td3, ddpg"),
    "buffer": (int, "transitions kept: sac, td3, ddpg (default: 200,000)"),
    "learning_starts": (int, "steps of random actions: sac, td3, ddpg"),
    "reward_scale": (float, "factor on rewards for the learner"),
    "workers": (int, "processes: a3c (default: 2)"),
    "threads": (int, "of torch, in each process (default: 1)"),
}


def add_to(commands: Any, evaluate_suites: Callable[[argparse.Namespace], int], add_eval: Any) -> None:
    """Add ``baseline`` to the commands of `scanpilot.cli`.

    Args:
        commands: where to.
        evaluate_suites: what ``scanpilot eval`` does, which baselines on ScanPilot share.
        add_eval: adds its arguments.
    """
    baseline = commands.add_parser(
        "baseline", help="SAC, TD3, DDPG, A2C, PPO and A3C on the same task, or on any Gymnasium id"
    )
    actions = baseline.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_train(actions)
    evaluate = add_eval(actions, "drive baselines as scanpilot eval; elsewhere, their returns")
    evaluate.set_defaults(run=functools.partial(_eval, evaluate_suites))
    export = actions.add_parser("export", help="write each network of a run as its own .pth")
    export.add_argument("directory", type=Path, metavar="RUN")
    export.add_argument("--out", type=Path, required=True, metavar="DIR")
    export.set_defaults(run=_export)


def _add_train(actions: Any) -> None:
    train = actions.add_parser("train", help="train a baseline")
    train.add_argument(
        "--algo", required=True, choices=("sac", "td3", "ddpg", "a2c", "a2c-discrete", "ppo", "a3c")
    )
    train.add_argument("--env", default="ScanPilot-v0", help="any Gymnasium id (default: ScanPilot-v0)")
    train.add_argument("--steps", type=int, required=True, help="of all environments together")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--out", type=Path, required=True, metavar="DIR")
    train.add_argument("--robot", default="generic_diff", help="for ScanPilot-v0")
    train.add_argument("--discrete", action="store_true", help="for a3c on ScanPilot-v0: discrete actions")
    train.add_argument(
        "--hidden", type=int, nargs="+", metavar="UNITS", help="of each layer (default: 256 256)"
    )
    for name, (kind, told) in _NUMBERS.items():
        train.add_argument(f"--{name.replace('_', '-')}", type=kind, help=told)
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    _need("stable_baselines3" if args.algo != "a3c" else "gymnasium")
    from scanpilot.baselines import run
    from scanpilot.baselines.tasks import TaskSpec

    if args.steps < 1:
        raise ConfigurationError(f"--steps {args.steps}: expected at least 1")
    if (args.out / "baseline.json").exists():
        raise ConfigurationError(f"{args.out} holds a run already: give another --out")
    given = {name: getattr(args, name) for name in _NUMBERS if getattr(args, name) is not None}
    if args.hidden:
        given["hidden"] = tuple(args.hidden)
    try:
        config = run.BaselineConfig(**given)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    discrete = args.algo == "a2c-discrete" or (args.algo == "a3c" and args.discrete)
    description = run.Description(
        algorithm=args.algo,
        task=TaskSpec(env=args.env, discrete=discrete, robot=args.robot),
        config=config,
        seed=args.seed,
        steps=args.steps,
        command=" ".join(["scanpilot", *sys.argv[1:]]),
    )
    _check_actions(description)
    args.out.mkdir(parents=True, exist_ok=True)
    train(description, args.out)
    print(f"run: {args.out}")
    return 0


def train(description: Any, out: Path) -> None:
    """Train what is described and write it into a directory that is there."""
    from scanpilot.baselines import run

    log_to = functools.partial(run.Log, out)
    if description.algorithm == "a3c":
        from scanpilot.baselines import a3c

        networks, steps, seconds = a3c.train(description, log_to)
    else:
        from scanpilot.baselines import sb3

        networks, steps, seconds = sb3.train(description, log_to)
    run.write(out, run.described(description, steps=steps, seconds=round(seconds, 2)), networks)


def _check_actions(description: Any) -> None:
    from gymnasium import spaces

    from scanpilot.baselines import tasks

    count = 8 if description.task.is_scanpilot else 1
    task = tasks.make(description.task, count)
    whole = isinstance(task.action_space, spaces.Discrete)
    task.close()
    if description.algorithm in ("sac", "td3", "ddpg") and whole:
        raise ConfigurationError(
            f"--algo {description.algorithm}: {description.task.env} has discrete actions"
        )
    if description.algorithm == "a2c-discrete" and not whole:
        raise ConfigurationError(f"--algo a2c-discrete: {description.task.env} has continuous actions")


def _eval(evaluate_suites: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    from scanpilot.baselines import run

    elsewhere = []
    for name in map(Path, args.policy):
        if (name / "baseline.json").is_file():
            description, _, _ = run.read(name)
            if not description.task.is_scanpilot:
                elsewhere.append(name)
    if not elsewhere:
        return evaluate_suites(args)
    if len(elsewhere) < len(args.policy):
        raise ConfigurationError("runs on ScanPilot-v0 and on other environments do not compare")
    results = [run.returns(name, args.episodes or 20, args.seed) for name in elsewhere]
    for told in results:
        low, high = told["return_interval"]
        print(
            f"{told['policy']} ({told['algorithm']} on {told['env']}): mean return {told['return']:.1f} "
            f"({low:.1f} to {high:.1f}) over {told['episodes']} episodes; random {told['random_return']:.1f}"
        )
    if args.json:
        data = results[0] if len(results) == 1 else {"policies": results}
        args.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return 0


def _export(args: argparse.Namespace) -> int:
    from scanpilot.baselines import run

    for file in run.export(args.directory, args.out):
        print(file)
    return 0


def _need(module: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise ConfigurationError(f"baselines need {module}: pip install 'scanpilot[baselines]'")
