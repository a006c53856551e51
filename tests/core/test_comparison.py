"""Suites cut into batches, policies side by side, pairs by hand, and the page that shows them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from scanpilot import resources
from scanpilot.command import active_components
from scanpilot.evaluation import difficulty, paired
from scanpilot.evaluation.episodes import Episode
from scanpilot.evaluation.metrics import (
    by_condition,
    by_world,
    cluster_interval,
    jerk,
    summarise,
    time_ratio,
)
from scanpilot.evaluation.page import write_page
from scanpilot.evaluation.runner import Named, evaluate
from scanpilot.evaluation.suites import SUITES, Batch, Suite
from scanpilot.observation import observation_for
from scanpilot.robot import load_robot
from scanpilot.sim.walkers import WalkerConfig
from scanpilot.sim.world import build_world
from scanpilot.types import FloatArray, Triplet

ROBOT = load_robot(resources.find("robot", "generic_diff"))
SMALL = Suite("small", 1, "clutter", 2, "", worlds_per_batch=2, walkers=WalkerConfig(count=1))


def episode(world: str, outcome: str = "success", condition: str = "") -> Episode:
    """Three metres straight on in three steps of a second, 1, 2 and 0 m/s on average."""
    return Episode(
        outcome=outcome,
        period=1.0,
        poses=np.array([(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (3.0, 0.0, 0.0), (3.0, 0.0, 0.0)]),
        actions=np.zeros((3, 3), dtype=np.float32),
        goal=np.array([3.0, 0.0, 0.0]),
        min_clearance=0.1,
        shortest=3.0,
        world=build_world(world),
        top_speed=2.0,
        condition=condition,
    )


def test_time_and_jerk_by_hand() -> None:
    one = episode("a")
    assert one.optimal == pytest.approx(1.5)
    assert time_ratio(one) == pytest.approx(2.0)
    assert np.isnan(time_ratio(episode("a", "timeout")))
    # Speeds 1, 2, 0 m/s: the second difference is (0 - 2) - (2 - 1) = -3 m/s over 1 s^2.
    assert jerk(one) == pytest.approx(3.0)
    assert jerk(replace(one, poses=one.poses[:2], actions=one.actions[:1])) == 0.0


def test_the_cluster_interval_is_wide_where_worlds_decide_and_not_where_they_do_not() -> None:
    alike = np.tile([1.0, 0.0], 50)
    assert cluster_interval(alike, [f"w{i // 2}" for i in range(100)]) == (0.5, 0.5)
    low, high = cluster_interval(np.repeat([1.0, 0.0], 50), [f"w{i // 10}" for i in range(100)])
    # Ten worlds, half of them won: 1.96 * sqrt(0.25 / 10) = 0.31 to either side.
    assert low == pytest.approx(0.19, abs=0.06)
    assert high == pytest.approx(0.81, abs=0.06)


def test_the_cluster_interval_leaves_out_what_has_no_value() -> None:
    low, high = cluster_interval(np.array([2.0, np.nan, 2.0, np.nan]), ["a", "a", "b", "c"])
    assert (low, high) == (2.0, 2.0)
    assert np.isnan(cluster_interval(np.array([np.nan]), ["a"])[0])


def test_mcnemar_by_hand() -> None:
    # Of 6 discordant episodes 1 for the first: 2 * (1 + 6) / 64.
    assert paired.mcnemar(1, 5) == pytest.approx(0.21875)
    assert paired.mcnemar(5, 1) == paired.mcnemar(1, 5)
    assert paired.mcnemar(0, 0) == 1.0
    assert paired.mcnemar(3, 3) == 1.0


def test_sign_flip_by_hand() -> None:
    # Five differences of one sign: 2 of the 32 signs are as extreme.
    assert paired.sign_flip(np.ones(5)) == pytest.approx(2 / 32, abs=0.01)
    assert paired.sign_flip(np.array([1.0, -1.0])) == 1.0
    assert paired.sign_flip(np.zeros(7)) == 1.0


def test_holm_by_hand() -> None:
    # 0.01 * 3, then 0.03 * 2, then 0.04 * 1, which may not fall below the one before.
    assert paired.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_pairs_by_hand() -> None:
    first = [episode("a"), episode("a", "timeout"), episode("b"), episode("b", "collision")]
    second = [episode("a"), episode("a"), episode("b"), episode("b")]
    (pair,) = paired.compare({"one": first, "two": second})
    assert (pair["first"], pair["second"]) == ("one", "two")
    assert pair["difference"] == 0.5
    assert (pair["only_first"], pair["only_second"]) == (0, 2)
    assert pair["p_mcnemar"] == 0.5
    assert pair["difference_interval"] == (0.5, 0.5)


def test_other_episodes_are_not_compared_in_pairs() -> None:
    other = replace(episode("a"), goal=np.array([2.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="did not drive the same episodes"):
        paired.compare({"one": [episode("a")], "two": [other]})


def test_outcomes_by_world_and_condition_by_hand() -> None:
    driven = [episode("a", condition="x"), episode("b", "timeout", "x"), episode("a", "collision", "y")]
    a, b = by_world(driven)
    assert (a["world"], a["episodes"], a["success"], a["collision"]) == ("a", 2, 0.5, 0.5)
    assert (b["world"], b["episodes"], b["timeout"]) == ("b", 1, 1.0)
    x, y = by_condition(driven)
    assert (x["condition"], x["success"]) == ("x", 0.5)
    assert (y["condition"], y["collision"]) == ("y", 1.0)
    assert by_condition(driven[:2]) == []


def test_batches_cover_the_episodes_under_each_condition_in_turn() -> None:
    suite = replace(SMALL, conditions=SUITES["latency"].conditions[:2])
    assert suite.batches(14) == [
        Batch(0, 2, 4, 0),
        Batch(0, 2, 4, 1),
        Batch(2, 2, 4, 0),
        Batch(2, 2, 2, 1),
    ]
    assert SUITES["crowd"].batches(100) == [Batch(0, 13, 100, alone=True)]


def _same(a: Episode, b: Episode) -> bool:
    return (
        a.outcome == b.outcome
        and np.array_equal(a.poses, b.poses)
        and np.array_equal(a.actions, b.actions)
        and a.min_clearance == b.min_clearance
        and a.world.name == b.world.name
    )


def test_two_processes_find_what_one_finds_to_the_last_digit_and_more_episodes_begin_with_fewer() -> None:
    who = [difficulty.straight(ROBOT)]
    (one,) = evaluate(who, SMALL, 10, seed=3, processes=1)
    (two,) = evaluate(who, SMALL, 10, seed=3, processes=2)
    (fewer,) = evaluate(who, SMALL, 5, seed=3, processes=1)
    assert len(one) == len(two) == 10
    assert all(map(_same, one, two))
    assert len(fewer) == 5
    assert all(map(_same, fewer, one))
    active = active_components(ROBOT)
    assert json.dumps(summarise(one, active)) == json.dumps(summarise(two, active))


def test_conditions_share_worlds_starts_and_goals() -> None:
    suite = replace(SMALL, conditions=SUITES["sensors"].conditions[:4], walkers=WalkerConfig())
    (driven,) = evaluate([difficulty.straight(ROBOT)], suite, 16, seed=1, processes=1)
    parts = [driven[4 * k : 4 * k + 4] for k in range(4)]
    for part in parts[1:]:
        for a, b in zip(parts[0], part, strict=True):
            assert a.world.name == b.world.name
            assert np.array_equal(a.poses[0], b.poses[0])
            assert np.array_equal(a.goal, b.goal)
    assert [part[0].condition for part in parts] == ["ideal", "noise", "dropout", "short range"]


@dataclass
class Spinner:
    """Turns on the spot; keeps what it saw."""

    beams: int = 0

    def act(self, triplet: Triplet) -> FloatArray:
        self.beams = triplet.scan.shape[-1]
        return np.tile(np.float32([0.0, 0.0, 1.0]), (len(triplet), 1))


def test_any_object_that_acts_can_be_evaluated() -> None:
    spinner = Spinner()
    named = Named("spinner", spinner, ROBOT, observation_for(ROBOT, beams=12))
    short = replace(SMALL, worlds_per_batch=1)
    (driven,) = evaluate([named], short, 2, seed=0, processes=1)
    assert spinner.beams == 12
    assert {e.outcome for e in driven} <= {"timeout", "collision"}


def test_what_cannot_travel_to_another_process_is_named() -> None:
    class Local(Spinner):
        pass

    named = Named("local", Local(), ROBOT, observation_for(ROBOT, beams=12))
    with pytest.raises(ValueError, match="processes=1"):
        evaluate([named], SMALL, 8, seed=0, processes=2)


def test_every_suite_is_published_with_its_difficulty() -> None:
    for suite in SUITES.values():
        known = difficulty.published(suite.name, suite.version)
        assert known is not None, f"{suite.name} v{suite.version}: run scanpilot suite --measure"
        assert known["episodes"] >= 1000
        assert sum(known["detours"]["shares"]) == pytest.approx(1.0)
    crowd = difficulty.published("crowd", 1)
    assert crowd is not None
    assert crowd["straight_success"] <= 0.32
    assert crowd["detour_1_5_and_more"] >= 0.04


def _page(path: Path, episodes: int = 8) -> Path:
    who = [difficulty.straight(ROBOT), Named("spinner", Spinner(), ROBOT, observation_for(ROBOT, beams=12))]
    driven = evaluate(who, SMALL, episodes, seed=0, processes=1)
    results = [
        {
            "policy": f"{contender.name}</script>",
            "identity": "",
            "suite": "small",
            "suite_version": 1,
            "about": "for tests",
            "seed": 0,
            **summarise(own, active_components(ROBOT)),
            "by_condition": [],
        }
        for contender, own in zip(who, driven, strict=True)
    ]
    compared = paired.compare({r["policy"]: own for r, own in zip(results, driven, strict=True)})
    assert write_page(path, results, driven, compared, difficulty.describe(driven[0]) | _NOBODY) == 0
    return path


_NOBODY = {"robot": "generic_diff", "seed": 0}


def test_a_page_holds_every_pose_and_asks_for_nothing(tmp_path: Path) -> None:
    text = _page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=|url\(|https?://|@import|fetch\(|XMLHttp""", text)
    data = json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert [p["policy"] for p in data["policies"]] == ["straight</script>", "spinner</script>"]
    blob = np.frombuffer(base64.b64decode(data["blob"]), "<i2")
    (driven,) = evaluate([difficulty.straight(ROBOT)], SMALL, 8, seed=0, processes=1)
    own = [e for e in data["episodes"] if e["policy"] == 0]
    assert len(own) == 8
    for told in own:
        scene = data["scenes"][told["scene"]]
        name = data["worlds"][scene["world"]]["name"]
        known = next(e for e in driven if e.world.name == name and e.scene and e.scene[1] == told["robot"])
        assert told["outcome"] == known.outcome
        assert told["steps"] == len(known.actions)
        at = scene["tracks"] + 3 * (np.arange(told["steps"]) * scene["robots"] + told["robot"])
        assert np.allclose(blob[at] * data["unit"], known.poses[:-1, 0], atol=0.006)
        assert np.allclose(told["end"], known.poses[-1], atol=1e-3)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_draws_the_page_without_an_error(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    page = _page(tmp_path / "page.html")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    done = subprocess.run(
        [CHROMIUM, *flags, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    head = done.stdout[: done.stdout.index("<head>")]
    assert 'data-ready="1"' in head
    assert "data-errors" not in head
    assert done.stdout.count("data-episode=") == 16
