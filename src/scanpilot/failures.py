"""Known ways in which training goes wrong, and what to try; from numbers that a trainer has anyway.

Pure arithmetic on `Signs`, which one report of a run makes; `Watch` waits until a sign has lasted. Nothing
here stops a run or changes it: people decide. Bounds are wide, since a false alarm teaches people to look
away; each says where it comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Signs:
    """What a run shows of itself at one report. A number that is not known is nan, and no sign of anything.

    Attributes:
        success, timeout: fractions of the episodes that ended lately.
        episodes: how many those are.
        forward: mean forward action lately, 0 to 1.
        turn: mean absolute yaw-rate action lately, 0 to 1.
        entropy: of the policy, nats.
        target_entropy: nats.
        temperature: alpha.
        value: mean of the critics.
        value_bound: the largest return, either way, that the task has to give.
        critic_loss: of the last update.
        feature_spread: mean over features of their standard deviation over a batch; tanh bounds it by 1.
        updates, skipped: updates done, and left out because a gradient was not finite.
        rejected: fraction of transitions left out because they held a number that is not finite.
    """

    success: float = math.nan
    timeout: float = math.nan
    episodes: int = 0
    forward: float = math.nan
    turn: float = math.nan
    entropy: float = math.nan
    target_entropy: float = math.nan
    temperature: float = math.nan
    value: float = math.nan
    value_bound: float = math.nan
    critic_loss: float = math.nan
    feature_spread: float = math.nan
    updates: int = 0
    skipped: int = 0
    rejected: float = 0.0


@dataclass(frozen=True)
class Failure:
    """One known failure.

    Attributes:
        name: one or two words, the same every time.
        seen: the numbers that say so.
        advice: what to try.
    """

    name: str
    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}: {self.seen}. Try: {self.advice}"


def find(signs: Signs) -> list[Failure]:
    """Every known failure that these signs show."""
    checks = (_spinning, _standing, _collapsed_entropy, _diverging_values, _dead_encoder, _broken_numbers)
    return [failure for check in checks if (failure := check(signs)) is not None]


def _spinning(s: Signs) -> Failure | None:
    # A released policy drives through clutter at 0.7 with turns of 0.35; random actions are at 0.5 and 0.5.
    if not (s.forward < 0.15 and s.turn > 0.5 and _seldom_arrives(s)):
        return None
    return Failure(
        "spinning",
        f"robots turn at {100 * s.turn:.0f} % of their yaw rate and drive at {100 * s.forward:.0f} % of "
        f"their speed, and {100 * s.success:.0f} % of {s.episodes} episodes arrive",
        "a larger task.progress beside task.collision and task.near, or easier worlds to begin with "
        "(nearer goals: fleet.goal_distance)",
    )


def _standing(s: Signs) -> Failure | None:
    if not (s.forward < 0.1 and s.turn <= 0.5 and s.timeout > 0.5 and s.episodes >= 50):
        return None
    return Failure(
        "standing",
        f"robots drive at {100 * s.forward:.0f} % of their speed, and {100 * s.timeout:.0f} % of "
        f"{s.episodes} episodes end by the time limit",
        "a smaller task.collision or task.near, or a larger task.time: a small cost of time beside a large "
        "one of contact teaches standing still",
    )


def _collapsed_entropy(s: Signs) -> Failure | None:
    # Two nats below its target is a policy a seventh as wide as it should be.
    if not (s.entropy < s.target_entropy - 2.0 and s.updates >= 1000):
        return None
    return Failure(
        "collapsed entropy",
        f"the policy's entropy is {s.entropy:.2f}, its target {s.target_entropy:.2f}, and the temperature "
        f"{s.temperature:.2g} does not bring it back",
        "a larger agent.initial_temperature or agent.temperature_learning_rate, and smaller "
        "agent.caps_temporal and agent.caps_spatial",
    )


def _diverging_values(s: Signs) -> Failure | None:
    infinite = math.isinf(s.value) or math.isinf(s.critic_loss)
    # Entropy adds to returns: up to twice what the rewards alone can sum to is not yet a sign.
    if not (infinite or abs(s.value) > 2.0 * s.value_bound):
        return None
    return Failure(
        "diverging Q",
        f"the critics' mean value is {s.value:.3g}, and no return of this task goes beyond "
        f"{s.value_bound:.3g}; their loss is {s.critic_loss:.3g}",
        "a smaller agent.learning_rate, agent.critic_tau or updates_per_step, "
        "agent.network.critic_layer_norm=true, or a smaller agent.gamma",
    )


def _dead_encoder(s: Signs) -> Failure | None:
    # That of a released policy is at 0.17.
    if not (s.feature_spread < 0.01 and s.updates >= 200):
        return None
    return Failure(
        "dead encoder",
        "features hardly depend on the scan: their standard deviation over a batch is "
        f"{s.feature_spread:.2g} (of at most 1)",
        "a smaller agent.learning_rate, agent.reconstruction=1, and a look at the reconstructed scans in "
        "TensorBoard",
    )


def _broken_numbers(s: Signs) -> Failure | None:
    if not (s.skipped > 0.01 * max(s.updates, 100) or s.rejected > 0.01):
        return None
    return Failure(
        "broken numbers",
        f"{s.skipped} of {s.updates} updates were left out because a gradient was not finite, and "
        f"{100 * s.rejected:.1f} % of the transitions because a number in them was not",
        "to find where the numbers come from (odometry, rewards, scans), or a smaller agent.learning_rate",
    )


def _seldom_arrives(s: Signs) -> bool:
    return s.success < 0.3 and s.episodes >= 50


class Watch:
    """Names a failure once it has been seen in several reports running, and again only after it went away.

    Args:
        patience: reports.
    """

    def __init__(self, patience: int = 5) -> None:
        self._patience = patience
        self._seen: dict[str, int] = {}

    def look(self, signs: Signs) -> list[Failure]:
        """The failures that have lasted until now and were not named yet."""
        found = find(signs)
        self._seen = {failure.name: self._seen.get(failure.name, 0) + 1 for failure in found}
        return [failure for failure in found if self._seen[failure.name] == self._patience]
