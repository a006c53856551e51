"""What a policy would have done where a robot drove: `scanpilot bag replay`.

The stream of the bag goes through the code that the live node and the conversion use; at every tick
the policy is asked, the guard is asked about its answer, and both stand beside what was recorded. The
robot went where it was driven, not where the policy would have taken it: this compares decisions, it
does not say how well the policy would have done.
"""

from __future__ import annotations

import base64
import collections
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scanpilot import command
from scanpilot.bags import BagError
from scanpilot.bags.convert import Choices, plan
from scanpilot.bags.files import Bag
from scanpilot.bags.stream import events
from scanpilot.guard import Action, Guard, GuardConfig
from scanpilot.navigator import NavigatorConfig
from scanpilot.observation import triplets_of, with_guidance
from scanpilot.transitions import Assembler, Step, TransitionConfig
from scanpilot.types import DoubleArray, FloatArray, Pose2D, Triplet, Twist2D

if TYPE_CHECKING:
    from scanpilot.policy import Policy

logger = logging.getLogger(__name__)

# Goals that nobody set: where the robot was so much later.
LOOK_AHEAD = 5.0
# A report holds at most so many ticks; ten minutes at 0.2 s.
MOST_TICKS = 3000
_AXES = ("vx", "vy", "wz")


@dataclass(frozen=True)
class Replay:
    """N ticks of a bag, what was done and what the policy would have done; stamps in seconds.

    Attributes:
        stamps: ``(N,)``.
        segments: ``(N,)`` number of the unbroken stretch.
        poses, goals: ``(N, 3)`` in the odometry frame.
        goal_set: ``(N,)`` whether the goal was set, not found in hindsight.
        speeds: ``(N, 3)`` measured.
        recorded, wanted, guarded: ``(N, 3)`` velocities: executed, asked by the policy, left by the guard.
        guard: ``(N,)`` 0 left alone, 1 slowed, 2 stopped.
        scans, reconstructions: ``(N, n)`` metres.
        errors: ``(N,)`` mean absolute ln(reconstructed / seen), a relative error.
        values: ``(N, 2)`` what the critics say of the recorded and of the policy's action; nan if unknown.
        angles: ``(n,)`` directions of the beams.
        radius: of the robot, metres.
    """

    stamps: DoubleArray
    segments: NDArray[np.int64]
    poses: DoubleArray
    goals: DoubleArray
    goal_set: NDArray[np.bool_]
    speeds: DoubleArray
    recorded: DoubleArray
    wanted: DoubleArray
    guarded: DoubleArray
    guard: NDArray[np.int64]
    scans: FloatArray
    reconstructions: FloatArray
    errors: DoubleArray
    values: DoubleArray
    angles: DoubleArray
    radius: float

    def __len__(self) -> int:
        """N."""
        return len(self.stamps)


def replay(
    path: Path,
    policy: Policy,
    choices: Choices | None = None,
    config: TransitionConfig | None = None,
    goal: Pose2D | None = None,
    begin: float = 0.0,
    training: Path | None = None,
) -> tuple[Replay, dict[str, Any]]:
    """Ask a policy at every tick of a bag; returns that and a summary for JSON.

    Args:
        path: the bag.
        policy: drives its own robot; the bag's mount replaces the policy's.
        choices: what the bag does not say.
        config: of the cutting into steps.
        goal: in the odometry frame, in the place of any other.
        begin: seconds after the first tick from which on to look, for `MOST_TICKS` ticks.
        training: a run's training state, for values.

    Raises:
        BagError: the bag cannot be used, or has no tick there.
    """
    config = config or TransitionConfig()
    left_out: collections.Counter[str] = collections.Counter()
    with Bag(path) as bag:
        found = plan(bag, policy.robot, choices or Choices(), config)
        mount = found.mount
        assembler = Assembler(policy.robot, policy.observation, mount.pose, mount.flipped, found.config)
        stream = events(bag, found.description.roles, found.description.stream, left_out)
        steps = _window(assembler, stream, begin)
    if not steps:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in assembler.cuts.items())
        raise BagError(f"{path}: no tick from second {begin:g} on; {reasons or 'the bag is shorter'}")
    result = _asked(steps, policy, goal, _Critics.load(training, policy) if training else None)
    return result, _summary(path, policy, result, assembler, found.description.problems)


def _window(assembler: Assembler, stream: Any, begin: float) -> list[Step]:
    """Steps from ``begin`` seconds after the first one on, as many as a report holds."""
    steps: list[Step] = []
    first: float | None = None

    def take(some: Sequence[Step]) -> bool:
        nonlocal first
        for step in some:
            first = step.before.stamp if first is None else first
            if step.before.stamp >= first + begin:
                steps.append(step)
        return len(steps) >= MOST_TICKS

    for event in stream:
        if take(assembler.add(event)):
            return steps[:MOST_TICKS]
    take(assembler.finish())
    return steps[:MOST_TICKS]


def _asked(steps: Sequence[Step], policy: Policy, told: Pose2D | None, critics: _Critics | None) -> Replay:
    robot, states = policy.robot, [step.before for step in steps]
    goals, goal_set = _goals(steps, told, robot.control_period)
    poses, speeds = np.array([s.pose for s in states]), np.array([s.speed for s in states])
    done = np.stack([step.action for step in steps])
    actions, seen, values = [], [], []
    for part in _parts([step.segment for step in steps]):
        frames = np.stack([s.frames for s in states[part]])
        triplet = triplets_of(frames, goals[part], poses[part], speeds[part])
        # As the live node, which remembers what it saw since the stream last broke off.
        triplet = with_guidance(triplet, policy.observation, poses[part])
        actions.append(policy.act(triplet))
        seen.append(policy.reconstruct(triplet))
        if critics is not None:
            values.append(np.stack((critics(triplet, done[part]), critics(triplet, actions[-1])), axis=1))
    scans, reconstructions = np.stack([s.frames[-1] for s in states]), np.concatenate(seen)
    wanted = command.commands(np.concatenate(actions), robot)
    # A robot that has arrived stands still, whatever its policy says.
    arrived = np.hypot(*(goals - poses)[:, :2].T) < NavigatorConfig().goal_tolerance
    wanted[arrived] = 0.0
    guarded, guard = _guarded(steps, wanted, policy)
    errors: DoubleArray = np.abs(np.log(reconstructions / scans)).mean(axis=1).astype(np.float64)
    return Replay(
        stamps=np.array([s.stamp for s in states]),
        segments=np.array([step.segment for step in steps]),
        poses=poses,
        goals=goals,
        goal_set=goal_set,
        speeds=speeds,
        recorded=command.commands(done, robot),
        wanted=wanted,
        guarded=guarded,
        guard=guard,
        scans=scans,
        reconstructions=reconstructions,
        errors=errors,
        values=np.concatenate(values) if values else np.full((len(steps), 2), math.nan),
        angles=policy.observation.angles,
        radius=robot.footprint.circumscribed_radius,
    )


def _parts(segments: Sequence[int]) -> list[slice]:
    """Each unbroken stretch."""
    borders = [0, *(np.flatnonzero(np.diff(segments)) + 1), len(segments)]
    return [slice(begin, end) for begin, end in itertools.pairwise(borders)]


def _goals(
    steps: Sequence[Step], told: Pose2D | None, period: float
) -> tuple[DoubleArray, NDArray[np.bool_]]:
    """A goal for each tick: told, set, or where the robot was `LOOK_AHEAD` later in the same segment."""
    later = max(1, round(LOOK_AHEAD / period))
    goals: list[Pose2D] = []
    for _, group in itertools.groupby(steps, key=lambda step: step.segment):
        stretch = list(group)
        for i, step in enumerate(stretch):
            ahead = stretch[min(i + later, len(stretch) - 1)].after.pose
            goals.append(told or step.before.goal or ahead)
    was_set = np.array([told is not None or step.before.goal is not None for step in steps])
    return np.array(goals), was_set


def _guarded(
    steps: Sequence[Step], wanted: DoubleArray, policy: Policy
) -> tuple[DoubleArray, NDArray[np.int64]]:
    """What the guard would have left of each command, had it been the next one sent."""
    robot, limits = policy.robot, policy.robot.limits
    guard = Guard(GuardConfig(), robot)
    reach = np.minimum(np.array([limits.ax, limits.ay, limits.awz]) * robot.control_period, 1e9)
    left, acted = wanted.copy(), np.zeros(len(steps), dtype=np.int64)
    for i, step in enumerate(steps):
        speed = np.array(step.before.speed)
        sent = speed + np.clip(wanted[i] - speed, -reach, reach)
        verdict = guard.check(
            Twist2D(*map(float, sent)),
            step.before.points,
            measured=step.before.speed,
            previous=step.before.speed,
            period=robot.control_period,
        )
        if verdict.action is not Action.NONE:
            left[i] = verdict.twist
            acted[i] = 2 if verdict.action is Action.STOPPED else 1
    return left, acted


class _Critics:
    """The critics of a training state, with the encoder they were trained with."""

    def __init__(self, policy: Policy, tensors: dict[str, Any]) -> None:
        import torch

        from scanpilot.networks import Critics, new_networks

        self._torch = torch
        self._observation = policy.observation
        self._network, _ = new_networks(policy.manifest)
        self._critics = Critics(policy.manifest.network, policy.observation.state_features)
        for module, name in ((self._network, "network"), (self._critics, "critics")):
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            module.load_state_dict(own)

    @classmethod
    def load(cls, training: Path, policy: Policy) -> _Critics | None:
        """From a training state; ``None``, logged, where it does not suit the policy."""
        from safetensors import SafetensorError, safe_open

        begin = "/agent/modules/"
        try:
            # Not through `checkpoint.read_state`, which would read the replay buffer as well.
            with safe_open(training / "tensors.safetensors", framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(begin)]  # noqa: SIM118
                tensors = {name.removeprefix(begin): file.get_tensor(name) for name in names}
            return cls(policy, tensors)
        except (OSError, SafetensorError, RuntimeError) as error:
            logger.warning("no values: %s: %s", training, str(error).partition("\n")[0])
            return None

    def __call__(self, triplet: Triplet, actions: FloatArray) -> DoubleArray:
        """``(N,)`` the smaller one of the critics' values."""
        from scanpilot.observation import encode_scan, encode_state, with_guidance
        from scanpilot.policy import named_inputs

        torch = self._torch
        inputs = named_inputs(with_guidance(triplet, self._observation))
        with torch.inference_mode():
            seen = {name: torch.from_numpy(array) for name, array in inputs.items()}
            feature = self._network.encoder(encode_scan(seen.pop("scan"), torch))
            state = encode_state(spec=self._observation, xp=torch, **seen)
            values = self._critics(feature, state, torch.from_numpy(np.ascontiguousarray(actions)))
            smaller: DoubleArray = values.min(dim=0).values.double().numpy()
        return smaller


def _summary(
    path: Path, policy: Policy, result: Replay, assembler: Assembler, problems: list[str]
) -> dict[str, Any]:
    apart = np.abs(result.wanted - result.recorded)
    values = result.values
    means = [round(float(mean), 3) for mean in values.mean(axis=0)]
    return {
        "bag": str(path),
        "policy": policy.name,
        "identity": policy.identity,
        "robot": policy.robot.name,
        "ticks": len(result),
        "seconds": round(float(result.stamps[-1] - result.stamps[0]), 2),
        "goals_set": round(float(result.goal_set.mean()), 4),
        "mean_difference": {name: round(float(apart[:, k].mean()), 4) for k, name in enumerate(_AXES)},
        "guard_slowed": round(float((result.guard == 1).mean()), 4),
        "guard_stopped": round(float((result.guard == 2).mean()), 4),
        "reconstruction_error": {
            "mean": round(float(result.errors.mean()), 4),
            "p90": round(float(np.percentile(result.errors, 90)), 4),
            "metres_median": round(float(np.median(np.abs(result.reconstructions - result.scans))), 4),
        },
        "value": None if np.isnan(values).any() else {"recorded": means[0], "policy": means[1]},
        "cuts": dict(assembler.cuts),
        "problems": problems,
    }


def write_html(result: Replay, summary: dict[str, Any], out: Path) -> None:
    """One page that holds all it needs and loads nothing."""
    arrays = {
        "stamps": result.stamps - result.stamps[0],
        "poses": result.poses,
        "goals": result.goals,
        "speeds": result.speeds,
        "recorded": result.recorded,
        "wanted": result.wanted,
        "guarded": result.guarded,
        "errors": result.errors,
        "values": result.values,
        "angles": result.angles,
    }
    data = {
        "summary": summary,
        "ticks": len(result),
        "beams": len(result.angles),
        "radius": result.radius,
        "floats": {name: _packed(array.astype("<f4")) for name, array in arrays.items()},
        # Whole centimetres are enough to look at.
        "centimetres": {
            name: _packed(np.round(100.0 * scans).astype("<u2"))
            for name, scans in (("scans", result.scans), ("reconstructions", result.reconstructions))
        },
        "bytes": {
            "guard": _packed(result.guard.astype("u1")),
            "set": _packed(result.goal_set.astype("u1")),
            "breaks": _packed(np.diff(result.segments, prepend=result.segments[0]).astype(bool).astype("u1")),
        },
    }
    template = package_files.files("scanpilot.bags").joinpath("replay.html").read_text(encoding="utf-8")
    # A topic's name must not end the script.
    text = json.dumps(data).replace("</", "<\\/")
    out.write_text(template.replace("/*DATA*/ null", text), encoding="utf-8")


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
