"""Signs of known failures by hand, and what is none."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from scanpilot.failures import Signs, Watch, find

# As a run of five minutes shows itself in its middle.
HEALTHY = Signs(
    success=0.8,
    timeout=0.05,
    episodes=500,
    forward=0.8,
    turn=0.3,
    entropy=-2.1,
    target_entropy=-2.0,
    temperature=0.02,
    value=9.0,
    value_bound=60.0,
    critic_loss=3.0,
    feature_spread=0.4,
    updates=8000,
    skipped=0,
    rejected=0.0,
)


def names(**changes: Any) -> list[str]:
    return [failure.name for failure in find(dataclasses.replace(HEALTHY, **changes))]


def test_a_healthy_run_shows_nothing() -> None:
    assert names() == []


def test_a_run_that_has_just_begun_shows_nothing() -> None:
    assert find(Signs()) == []
    # Random actions, everybody collides, the critics know nothing.
    assert names(success=0.0, timeout=0.0, forward=0.5, turn=0.5, value=0.0, feature_spread=0.3) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("spinning", {"success": 0.02, "timeout": 0.9, "forward": 0.05, "turn": 0.9}),
        ("standing", {"success": 0.1, "timeout": 0.8, "forward": 0.02, "turn": 0.1}),
        ("collapsed entropy", {"entropy": -4.5}),
        ("diverging Q", {"value": 500.0}),
        ("diverging Q", {"value": -500.0}),
        ("diverging Q", {"critic_loss": math.inf}),
        ("dead encoder", {"feature_spread": 0.001}),
        ("broken numbers", {"skipped": 100}),
        ("broken numbers", {"rejected": 0.05}),
    ],
)
def test_each_failure_is_named_by_its_signs_alone(name: str, changes: dict[str, Any]) -> None:
    assert names(**changes) == [name]


@pytest.mark.parametrize(
    "changes",
    [
        # Turns on the spot before a drive, and arrives.
        {"forward": 0.1, "turn": 0.8},
        # Too few episodes to say.
        {"success": 0.0, "timeout": 1.0, "forward": 0.0, "turn": 0.0, "episodes": 20},
        # The temperature has had no time yet.
        {"entropy": -4.5, "updates": 500},
        # Entropy adds to what rewards can sum to.
        {"value": 110.0},
        {"feature_spread": 0.001, "updates": 100},
        {"skipped": 1},
    ],
)
def test_what_only_looks_like_a_failure_is_none(changes: dict[str, Any]) -> None:
    assert names(**changes) == []


def test_a_message_says_what_it_saw_and_what_to_try() -> None:
    (failure,) = find(dataclasses.replace(HEALTHY, success=0.1, timeout=0.8, forward=0.02, turn=0.1))
    assert str(failure).startswith("standing: robots drive at 2 % of their speed, and 80 % of 500 episodes")
    assert "Try: a smaller task.collision" in str(failure)


def test_a_failure_is_named_once_when_it_has_lasted_and_again_when_it_comes_back() -> None:
    watch, bad = Watch(patience=3), dataclasses.replace(HEALTHY, value=500.0)
    looks = [bad, bad, HEALTHY, bad, bad, bad, bad, HEALTHY, bad, bad, bad]
    named = [[failure.name for failure in watch.look(signs)] for signs in looks]
    at = [i for i, found in enumerate(named) if found]
    assert at == [5, 10]
    assert named[5] == ["diverging Q"]
