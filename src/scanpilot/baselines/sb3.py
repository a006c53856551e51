"""SAC, TD3, DDPG, A2C and PPO by stable-baselines3, on the tasks of `tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env.base_vec_env import VecEnv
from torch import nn

from scanpilot.baselines.run import Choose, Description, Log
from scanpilot.baselines.tasks import Array, Moved, Task, make

_OFF_POLICY: dict[str, Any] = {"sac": SAC, "td3": TD3, "ddpg": DDPG}
_ON_POLICY: dict[str, Any] = {"a2c": A2C, "a2c-discrete": A2C, "ppo": PPO}
_CLASSES = {**_OFF_POLICY, **_ON_POLICY}


def train(description: Description, log_to: Any) -> tuple[nn.Module, int, float]:
    """Train one; returns its networks, the steps taken and seconds.

    Args:
        description: what and how.
        log_to: makes the `Log` from the number of environments.
    """
    config = description.config
    torch.set_num_threads(config.threads)
    off_policy = description.algorithm in _OFF_POLICY
    count = config.envs or (1 if off_policy and not description.task.is_scanpilot else 8)
    task = make(description.task, count)
    log: Log = log_to(count)
    model = _new_model(description, _Vectorised(task, description.seed, log, config.reward_scale))
    model.learn(description.steps, callback=_Stop(description.steps))
    seconds = log.close()
    task.close()
    return model.policy, log.steps, seconds


def _new_model(description: Description, environments: VecEnv) -> Any:
    c, algorithm = description.config, description.algorithm
    given: dict[str, Any] = {"gamma": c.gamma, "learning_rate": c.learning_rate, "batch_size": c.batch}
    if algorithm in _OFF_POLICY:
        given |= {
            "gradient_steps": c.gradient_steps or 1,
            "train_freq": 1,
            "buffer_size": c.buffer or 200_000,
            "learning_starts": c.learning_starts,
        }
        if algorithm != "sac":
            shape: tuple[int, ...] = environments.action_space.shape or ()
            given["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, 0.1))
    else:
        given |= {"gae_lambda": c.gae_lambda, "ent_coef": c.entropy, "n_steps": c.rollout}
        if algorithm != "ppo":
            del given["batch_size"]
    policy = "CnnPolicy" if _is_image(environments.observation_space) else "MlpPolicy"
    return _CLASSES[algorithm](
        policy,
        environments,
        seed=description.seed,
        device="cpu",
        policy_kwargs=_policy_arguments(description, environments.observation_space),
        **{name: value for name, value in given.items() if value is not None},
    )


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _policy_arguments(description: Description, seen: spaces.Space[Any]) -> dict[str, Any]:
    # Images go through stable-baselines3's convolutions, which end in 512 features by themselves.
    return {"net_arch": [] if _is_image(seen) else list(description.config.hidden)}


def new_policy(
    description: Description, seen: spaces.Box, done: spaces.Box | spaces.Discrete
) -> tuple[nn.Module, Choose]:
    """Networks of the sizes that a description states, and what they choose."""
    aliases = _CLASSES[description.algorithm].policy_aliases
    kind = aliases["CnnPolicy" if _is_image(seen) else "MlpPolicy"]
    arguments = _policy_arguments(description, seen)
    if description.algorithm == "ddpg":
        # As DDPG makes of TD3's policy.
        arguments["n_critics"] = 1
    policy = kind(seen, done, lambda _: 0.0, **arguments)

    def choose(observations: Array) -> Array:
        actions: Array = policy.predict(observations, deterministic=True)[0]
        return actions

    return policy, choose


class _Vectorised(VecEnv):
    """A `Task` as stable-baselines3 wants it."""

    def __init__(self, task: Task, seed: int, log: Log, reward_scale: float) -> None:
        super().__init__(task.count, task.observation_space, task.action_space)
        self._task, self._first_seed, self._log, self._scale = task, seed, log, reward_scale
        self._actions: Array = np.zeros(0)

    def reset(self) -> Any:
        return self._task.reset(self._first_seed)

    def step_async(self, actions: Array) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        moved: Moved = self._task.step(self._actions)
        self._log.add(moved)
        ended = moved.terminated | moved.truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(ended):
            infos[index] = {
                "terminal_observation": moved.last[index],
                "TimeLimit.truncated": bool(moved.truncated[index] and not moved.terminated[index]),
            }
        return moved.observations, (self._scale * moved.rewards).astype(np.float32), ended, infos

    def close(self) -> None:
        self._task.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Of which stable-baselines3 asks only for the render mode."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """There is nothing to set."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """There is nothing to call."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """By nothing."""
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """The task's seed is given to it at its reset."""
        return [self._first_seed] * self.num_envs


class _Stop(BaseCallback):
    """Ends the rollout, too, when the steps are used up."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def _on_step(self) -> bool:
        return self.num_timesteps < self._steps
