"""Turn a run's policy into a released one: evaluated on the test suites, with a model card."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scanpilot import checkpoint
from scanpilot.command import active_components
from scanpilot.evaluation import report
from scanpilot.evaluation.metrics import summarise
from scanpilot.evaluation.suites import SUITES, run_suite
from scanpilot.observation import ObservationSpec
from scanpilot.policy import Policy
from scanpilot.torch_inference import TorchInference

_LIMITS = """\
- Trained and tested in the embedded simulator only: planar worlds, walls and obstacles that every
  beam sees, other robots of the same kind. Glass, tables, stairs and people are not in them.
- {memory}: goals behind long walls or in dead ends need sub-goals from a global planner; see the success
  by detour above.
- It never drives backwards. It was trained for the robot, limits and control period in
  `policy.json`; another robot needs its own training (`scanpilot train --robot my_robot.yaml`).
- It is no safety device. Run it behind the base's own command time-out and an independent collision monitor.
"""


def release(run: Path, directory: Path, episodes: int, seed: int, suites: Sequence[str]) -> Policy:
    """Evaluate a run's published policy on unseen worlds and write it with a model card.

    Args:
        run: directory of the run, or a policy directory.
        directory: of the released policy; replaced when there.
        episodes: of each suite.
        seed: of the suites.
        suites: names.

    Raises:
        scanpilot.checkpoint.CheckpointError: the run holds no usable policy.
    """
    policy = checkpoint.load_policy(run, "torch")
    results = {}
    for name in suites:
        suite = SUITES[name]
        driven = run_suite(suite, policy.act, policy.robot, policy.observation, episodes, seed)
        results[name] = {
            "suite_version": suite.version,
            "seed": seed,
            **summarise(driven, active_components(policy.robot)),
        }
        report.print_summary(
            {"policy": directory.name, "identity": policy.identity, "suite": name, **results[name]}
        )
    manifest = dataclasses.replace(
        policy.manifest, name=directory.name, evaluation={**policy.manifest.evaluation, **results}
    )
    assert isinstance(policy.inference, TorchInference)
    checkpoint.write_policy(directory, manifest, policy.inference.network, policy.inference.decoder)
    released = checkpoint.load_policy(directory)
    (directory / "README.md").write_text(_card(released, directory, results), encoding="utf-8")
    return released


def _card(policy: Policy, directory: Path, results: dict[str, Any]) -> str:
    training = policy.manifest.training
    observation = policy.observation
    lines = [
        f"# {policy.name}",
        "",
        f"A SAC-AE-CAPS policy for the robot `{policy.robot.name}` ({policy.robot.kinematics}, "
        f"{policy.robot.limits.vx:g} m/s, {policy.robot.limits.wz:g} rad/s), one action every "
        f"{policy.control_period:g} s from {observation.frames} scans of {observation.beams} beams.",
        f"Identity `{policy.identity}`. Licence: Apache-2.0, as the code.",
        "",
        "## Training",
        "",
        f"Data: none but simulation, worlds of the generator `{training.get('world')}`, training stream.",
        "",
        "```",
        str(training.get("command")),
        "```",
        "",
        f"Seed {training.get('seed')}; published after "
        f"{training.get('steps'):,} robot steps, {training.get('updates'):,} updates "
        f"and {training.get('minutes'):.1f} minutes.",
        "The whole configuration is in `policy.json`.",
        "",
        "## Evaluation",
        "",
        "On worlds, starts and goals that training never saw; 95 % intervals (Wilson; bootstrap for SPL).",
        "",
    ]
    for name, result in results.items():
        lines += _table(name, result, directory)
    lines += [f"Evaluated on {platform.machine()}, Python {platform.python_version()}.", "", "## Limits", ""]
    return "\n".join(lines) + "\n" + _LIMITS.format(memory=_memory(observation))


def _memory(observation: ObservationSpec) -> str:
    if observation.guidance is None:
        return f"The policy has no map and {observation.frames} scans of memory"
    return f"The policy remembers obstacles within {observation.guidance.half_width:.1f} m and has no map"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _table(suite: str, result: dict[str, Any], directory: Path) -> list[str]:
    def row(name: str, value: float, interval: Sequence[float]) -> str:
        return f"| {name} | {100 * value:.1f} % | {100 * interval[0]:.1f} to {100 * interval[1]:.1f} % |"

    lines = [
        f"`scanpilot eval {directory.name} --suite {suite} --episodes {result['episodes']} "
        f"--seed {result['seed']}` (suite version {result['suite_version']})",
        "",
        "| | value | interval |",
        "|---|---|---|",
        *(
            row(name, result[name], result[f"{name}_interval"])
            for name in ("success", "collision", "timeout")
        ),
        row("path efficiency (SPL)", result["path_efficiency"], result["path_efficiency_interval"]),
    ]
    for part in result["by_detour"]:
        if part["episodes"]:
            low, high = part["detour"]
            label = f"success, detour {low:g} to {high:g}" if high else f"success, detour {low:g} and more"
            lines.append(
                row(f"{label} ({part['episodes']} episodes)", part["success"], part["success_interval"])
            )
    lines += [
        f"| mean time of successes | {_seconds(result['time'])} | |",
        f"| smoothness Sm | {result['smoothness']:.3f} | |",
        f"| mean change of action | {result['action_change']:.3f} | |",
        "",
    ]
    return lines
