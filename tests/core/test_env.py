"""The Gymnasium and PettingZoo environments: their own checkers, ends of episodes, seeds, pictures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra gym)")

from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from scanpilot.env import ScanPilotEnv, ScanPilotVectorEnv  # noqa: E402
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec  # noqa: E402
from scanpilot.sim.simulator import SimulatorConfig  # noqa: E402
from scanpilot.sim.world import Solid, World, box, build_world  # noqa: E402
from scanpilot.task import TaskConfig  # noqa: E402

ID = "scanpilot.env:ScanPilot-v0"
FORWARD = np.array([1.0, 0.0, 0.0], dtype=np.float32)
STOP = np.zeros(3, dtype=np.float32)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gymnasium's checkers mostly warn: here that fails. No window is opened."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def hall(number: int) -> World:
    """20 m by 4 m; the pillar's place tells the worlds apart."""
    walls = [(0, 2.1, 20.4, 0.2), (0, -2.1, 20.4, 0.2), (10.1, 0, 0.2, 4.4), (-10.1, 0, 0.2, 4.4)]
    pillar = box(-8.0 + number % 16, 1.8, 0.2, 0.2)
    return build_world(f"hall {number}", [Solid((box(*map(float, w)),)) for w in walls] + [Solid((pillar,))])


def short(limit: int = 5, **changes: Any) -> dict[str, Any]:
    return {"world": hall, "task": TaskConfig(time_limit=limit), **changes}


def stopped(envs: Any) -> np.ndarray[Any, Any]:
    return np.zeros((envs.num_envs, 3), dtype=np.float32)


@pytest.mark.parametrize(
    "scenario",
    [
        {},
        {"robot": "generic_omni", "world": "maze", "stream": "test"},
        {"world": "demo", "simulator": SimulatorConfig(scan_noise=0.05, scan_dropout=0.1, vary=True)},
        {"world": hall, "world_lifetime": 1},
    ],
    ids=["default", "omni", "file and noise", "new world every episode"],
)
def test_gymnasium_finds_nothing_to_say(scenario: dict[str, Any]) -> None:
    env = gymnasium.make(ID, **scenario)
    check_env(env.unwrapped)
    env.close()


def test_the_window_is_checked_too() -> None:
    check_env(gymnasium.make(ID, render_mode="rgb_array", world=hall).unwrapped)
    check_env(gymnasium.make(ID, render_mode="human", world=hall).unwrapped)


def test_the_id_is_known_by_itself_once_the_module_is_imported() -> None:
    code = "import gymnasium, scanpilot.env; print(gymnasium.make('ScanPilot-v0').unwrapped)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "ScanPilotEnv" in done.stdout, done.stderr


def test_scanpilot_does_without_gymnasium_and_env_without_torch_and_matplotlib() -> None:
    for module, absent in (("scanpilot", "gymnasium"), ("scanpilot.env", "torch matplotlib pettingzoo")):
        code = f"import sys, {module}; print([m for m in '{absent}'.split() if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == "[]", (module, done.stderr)


def test_arriving_and_hitting_terminate_and_time_truncates() -> None:
    env = ScanPilotEnv(**short(limit=3))
    env.reset(seed=0)
    ends = [env.step(STOP)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]

    env = ScanPilotEnv(**short(limit=300))
    env.reset(seed=0)
    arena = env._arena.fleet
    arena.simulator.place([0], np.array([(0.0, 0.0, 0.0)]))
    arena.goals[0] = (1.0, 0.0, 0.0)
    end = drive(env)
    assert (end["is_success"], end["collided"]) == (True, False)

    env.reset()
    arena.simulator.place([0], np.array([(9.0, 0.0, 0.0)]))
    arena.goals[0] = (-9.0, 0.0, 0.0)
    end = drive(env)
    assert (end["is_success"], end["collided"]) == (False, True)


def drive(env: ScanPilotEnv) -> dict[str, Any]:
    for _ in range(30):
        _, _, terminated, truncated, info = env.step(FORWARD)
        if terminated:
            assert not truncated
            return info
    raise AssertionError("the episode did not end")


def test_seeds_decide_worlds_and_episodes() -> None:
    def rolled(seed: int) -> list[Any]:
        env.action_space.seed(0)
        seen: list[Any] = [env.reset(seed=seed)]
        for _ in range(30):
            seen.append(env.step(env.action_space.sample()))
            if seen[-1][2] or seen[-1][3]:
                seen.append(env.reset())
        return seen

    env = ScanPilotEnv(simulator=SimulatorConfig(scan_noise=0.02), task=TaskConfig(time_limit=10))
    first = rolled(1)
    assert not data_equivalence(first, rolled(2))
    assert data_equivalence(first, rolled(1), exact=True)


def test_a_world_gives_way_between_two_episodes_only() -> None:
    env = ScanPilotEnv(**short(limit=10, world_lifetime=15))
    env.reset(seed=0)
    names = []
    for _ in range(3):
        for step in range(10):
            truncated = env.step(STOP)[3]
            assert truncated == (step == 9)
        names.append(env._arena.fleet.world_of(0).name)
        env.reset()
    assert names == ["hall 0", "hall 0", "hall 1"]


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match="wrld"):
        ScanPilotEnv(wrld="clutter")
    with pytest.raises(FileNotFoundError, match="generic_dif"):
        ScanPilotEnv(robot="generic_dif")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ScanPilotEnv(world="nowhere")
    with pytest.raises(ValueError, match="ansi"):
        ScanPilotEnv(render_mode="ansi")
    with pytest.raises(ValueError, match="multiple"):
        ScanPilotVectorEnv(num_envs=5, robots_per_world=2)
    env = ScanPilotEnv(world=hall)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(STOP)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(ValueError, match="finite"):
        env.step(np.array([np.nan, 0, 0], dtype=np.float32))


@pytest.mark.parametrize("kinematics", ["differential", "omnidirectional", "car"])
def test_no_observation_leaves_its_space(kinematics: Any) -> None:
    """Not even on an endless plane, with robots that overdo their commands."""
    limits = Limits(vx=2.0, wz=1.0, vy=1.0 if kinematics == "omnidirectional" else 0.0)
    robot = RobotSpec(
        "runner",
        kinematics,
        Footprint(polygon=((0.3, 0.2), (-0.3, 0.2), (-0.3, -0.2), (0.3, -0.2))),
        limits,
        Lidar(beams=40, angle_min=-1.0, angle_max=1.0, x=0.2),
        turning_radius=0.8 if kinematics == "car" else 0.0,
    )
    plain = build_world("plain", [Solid((box(0.0, 0.0, 0.1, 0.1),))], bounds=(-9.0, -9.0, 9.0, 9.0))
    envs = ScanPilotVectorEnv(
        num_envs=8,
        robots_per_world=2,
        robot=robot,
        world=lambda number: plain,
        task=TaskConfig(time_limit=60),
        simulator=SimulatorConfig(scan_noise=0.1, scan_short=0.1, velocity_error=0.3),
    )
    assert envs.reset(seed=0)[0] in envs.observation_space
    envs.action_space.seed(0)
    straight = envs.action_space.sample()
    straight[:, 0] = 1.0
    for step in range(130):
        seen, *_, infos = envs.step(straight if step < 65 else envs.action_space.sample())
        assert seen in envs.observation_space
        for last in infos.get("final_obs", []):
            assert last is None or last in envs.single_observation_space


def test_pictures_follow_the_robot() -> None:
    env = gymnasium.make(ID, render_mode="rgb_array", world=hall)
    env.reset(seed=0)
    first = env.render()
    for _ in range(4):
        env.step(FORWARD)
    second = env.render()
    assert first.shape == second.shape == (480, 480, 3)
    assert first.dtype == np.uint8
    assert 0 < np.mean(first != second) < 0.2
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 3
    env.close()
    env.close()


# --- many at once -----------------------------------------------------------------------------------------


def make_vec(mode: str, count: int, **changes: Any) -> Any:
    kwargs: dict[str, Any] = {"vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
    return gymnasium.make_vec(
        ID, count, vectorization_mode=mode, **(kwargs if mode == "sync" else {}), **short(**changes)
    )


def layout(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: layout(part) for key, part in value.items()}
    return (value.shape, value.dtype) if isinstance(value, np.ndarray) else type(value)


def test_the_vector_environment_answers_as_gymnasiums_own_does() -> None:
    """Spaces, shapes, types, masks and whom they speak for, over an episode's end."""
    ours, theirs = make_vec("vector_entry_point", 3), make_vec("sync", 3)
    assert isinstance(ours, ScanPilotVectorEnv)
    assert isinstance(theirs, SyncVectorEnv)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert layout(ours.reset(seed=1)) == layout(theirs.reset(seed=1))
    for _ in range(7):
        mine, other = ours.step(stopped(ours)), theirs.step(stopped(theirs))
        assert mine[0] in ours.observation_space
        # Gymnasium's leaves out what it has of nobody, as here where all end at once; we say so in the mask.
        for key in [k for k in mine[4] if k[0] != "_" and k not in other[4]]:
            del mine[4][key]
            assert not mine[4].pop(f"_{key}").any()
        assert [layout(v) for v in mine] == [layout(v) for v in other]
        for a, b in zip(mine[2:4], other[2:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert ("final_info" in mine[4]) == mine[3].any()
        for infos, others in ((mine[4], other[4]), (mine[4].get("final_info"), other[4].get("final_info"))):
            for key in (k for k in infos or () if k.startswith("_")):
                np.testing.assert_array_equal(infos[key], others[key], err_msg=key)


def test_the_last_observation_is_the_old_episodes_and_the_next_one_the_new() -> None:
    envs = make_vec("vector_entry_point", 4, limit=300, robots_per_world=2)
    envs.reset(seed=3)
    fleet = envs._fleet
    fleet.simulator.place([1], np.array([(0.0, 0.0, 0.0)]))
    fleet.goals[1] = (0.45, 0.0, 0.0)
    actions = stopped(envs)
    actions[1] = FORWARD
    ended = np.zeros(4, dtype=bool)
    while not ended.any():
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
    assert terminated.tolist() == [False, True, False, False]
    assert not truncated.any()
    assert rewards[1] > 10.0
    last = infos["final_obs"][1]
    assert infos["final_obs"][[0, 2, 3]].tolist() == [None] * 3
    assert last in envs.single_observation_space
    assert np.hypot(*last["goal"][:2]) < 0.3
    assert last["speed"][0] > 0.0
    assert np.hypot(*seen["goal"][1, :2]) >= 1.9
    assert seen["speed"][1, 0] == 0.0
    # The new episode's frames are all of its first scan.
    np.testing.assert_array_equal(seen["scan"][1], np.repeat(seen["scan"][1, -1:], 3, axis=0))
    assert infos["final_info"]["is_success"].tolist() == [False, True, False, False]
    assert infos["_is_success"].tolist() == [True, False, True, True]


def test_what_was_returned_is_not_changed_later() -> None:
    envs = make_vec("vector_entry_point", 4, limit=2)
    kept = []
    kept.append(envs.reset(seed=0)[0])
    copies = [{k: v.copy() for k, v in kept[0].items()}]
    for _ in range(5):
        kept.append(envs.step(np.tile(FORWARD, (4, 1)))[0])
        copies.append({k: v.copy() for k, v in kept[-1].items()})
    assert data_equivalence(kept, copies, exact=True)
    # Nor does what the caller does to it reach the robots.
    kept[-1]["scan"][:] = 1.0
    seen, _ = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert (seen["scan"][1:] != 1.0).any()


def test_vector_seeds_and_masks() -> None:
    envs = make_vec("vector_entry_point", 4, limit=100)
    first = envs.reset(seed=5)
    later = envs.step(np.tile(FORWARD, (4, 1)))
    assert data_equivalence(first, envs.reset(seed=5), exact=True)
    assert data_equivalence(later, envs.step(np.tile(FORWARD, (4, 1))), exact=True)
    assert not data_equivalence(first[0], envs.reset(seed=6)[0])
    assert not data_equivalence(envs.reset()[0], envs.reset()[0])

    mask = np.array([False, True, False, False])
    before = envs.step(stopped(envs))[0]
    after, infos = envs.reset(options={"reset_mask": mask})
    changed = [not np.array_equal(before["goal"][i], after["goal"][i]) for i in range(4)]
    assert changed == mask.tolist()
    assert infos["_pose"].tolist() == mask.tolist()
    for wrong in (mask[:2], mask.astype(int), [True] * 4):
        with pytest.raises(ValueError, match="reset_mask"):
            envs.reset(options={"reset_mask": wrong})
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=1, options={"reset_mask": mask})


def test_gymnasiums_vector_wrappers_work() -> None:
    """Those that Gymnasium allows where episodes follow in the same step: not all do."""
    envs = make_vec("vector_entry_point", 4, limit=5)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    envs = gymnasium.wrappers.vector.NormalizeReward(envs)
    envs = gymnasium.wrappers.vector.ClipAction(envs)
    envs.reset(seed=0)
    for _ in range(5):
        seen, rewards, _, truncated, infos = envs.step(-np.tile(FORWARD, (4, 1)))
    assert truncated.all()
    assert seen in envs.observation_space
    assert rewards.shape == (4,)
    assert infos["episode"]["l"].tolist() == [5] * 4
    np.testing.assert_array_equal(infos["final_info"]["executed_action"][0], STOP)


def test_vector_pictures_are_one_of_each_world() -> None:
    envs = make_vec("vector_entry_point", 4, robots_per_world=2, render_mode="rgb_array")
    envs.reset(seed=0)
    frames = envs.render()
    assert len(frames) == 4
    assert frames[0] is frames[1]
    assert np.any(frames[0] != frames[2])
    envs.close()


# --- PettingZoo -------------------------------------------------------------------------------------------


def parallel_env(**kwargs: Any) -> Any:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed (extra gym)")
    from scanpilot.multi_agent import ScanPilotParallelEnv

    return ScanPilotParallelEnv(**kwargs)


def test_pettingzoo_finds_nothing_to_say() -> None:
    env = parallel_env(robots=4)
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(env, num_cycles=400)
    parallel_seed_test(lambda: parallel_env(robots=3), num_cycles=50)


def test_an_agent_that_is_done_leaves_and_its_robot_stays_in_the_way() -> None:
    env = parallel_env(robots=2, **short(limit=40))
    env.reset(seed=0)
    fleet = env._arena.fleet
    fleet.simulator.place([0, 1], np.array([(0.0, 0.0, 0.0), (-3.0, 0.0, 0.0)]))
    fleet.goals[:] = [(0.45, 0.0, 0.0), (5.0, 0.0, 0.0)]
    while len(env.agents) == 2:
        _, _, terminated, _, infos = env.step({"robot_0": FORWARD, "robot_1": STOP})
    assert terminated == {"robot_0": True, "robot_1": False}
    assert infos["robot_0"]["is_success"]
    stays = fleet.simulator.poses[0].copy()
    while env.agents:
        seen, _, terminated, truncated, infos = env.step({"robot_1": FORWARD})
        assert list(seen) == list(infos) == ["robot_1"]
    # It rolled on while it braked, no further.
    assert np.hypot(*(fleet.simulator.poses[0] - stays)[:2]) < 0.3
    assert infos["robot_1"]["collided"]
    assert terminated == {"robot_1": True}
    assert truncated == {"robot_1": False}
    env.reset()
    assert env.agents == ["robot_0", "robot_1"]


def test_agents_are_pictured() -> None:
    env = parallel_env(robots=2, world=hall, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (480, 480, 3)
    env.close()


# --- stable-baselines3 ------------------------------------------------------------------------------------


def test_stable_baselines3_trains_on_it(tmp_path: Path) -> None:
    sb3 = pytest.importorskip(
        "stable_baselines3", reason="stable_baselines3 is not installed (extra baselines)"
    )
    from stable_baselines3.common import env_checker

    # Its checker recommends symmetric actions and flat observations: ours are what the robot has.
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        env = gymnasium.make(ID, world=hall)
        env_checker.check_env(env.unwrapped, warn=False)
        agent = sb3.SAC("MultiInputPolicy", env, learning_starts=50, batch_size=16, buffer_size=500, seed=0)
        before = [p.detach().clone() for p in agent.actor.parameters()]
        agent.learn(200)
        assert any((a != b).any() for a, b in zip(before, agent.actor.parameters(), strict=True))
        seen, _ = env.reset(seed=0)
        action, _ = agent.predict(seen, deterministic=True)
    assert action in env.action_space
