"""One world of many robots as a PettingZoo parallel environment, each robot an agent.

    env = ScanPilotParallelEnv(robots=8, world="crowd")

PettingZoo is needed here only: `scanpilot[gym]` installs it. What is true of one robot is in `env`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from scanpilot.env import (
    METADATA,
    Arena,
    Image,
    Info,
    Observation,
    Scenario,
    Setting,
    action_space,
    observations,
    of_robot,
    reset_infos,
    step_infos,
)
from scanpilot.types import FloatArray


class ScanPilotParallelEnv(ParallelEnv):
    """Robots of one world, each with its own goal, that see and hit each other.

    An agent whose episode ends leaves; its robot stays where it stopped, an obstacle to the others,
    until the next reset.

    Args:
        robots: R; the agents are ``robot_0`` and so on.
        render_mode: ``human``, ``rgb_array`` or None.
        scenario: see `scanpilot.env.Scenario`.
    """

    metadata = METADATA | {"name": "scanpilot_v0"}

    def __init__(self, robots: int = 4, render_mode: str | None = None, **scenario: Any) -> None:
        if robots < 1:
            raise ValueError(f"robots is {robots}, expected at least 1")
        setting = Setting(Scenario(**scenario))
        self.metadata = {**self.metadata, "render_fps": setting.frame_rate}
        self.render_mode = render_mode
        self._arena = Arena(setting, robots, render_mode)
        self.possible_agents = [f"robot_{robot}" for robot in range(robots)]
        self.agents: list[str] = []
        self.observation_spaces = {agent: setting.observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: action_space() for agent in self.possible_agents}
        self._rng, _ = seeding.np_random()

    def observation_space(self, agent: str) -> spaces.Space[Observation]:
        """What one agent sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[FloatArray]:
        """What one agent can do."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin an episode of every robot; the seed decides everything. There are no options."""
        if seed is not None:
            self._rng, _ = seeding.np_random(seed)
        self.agents = list(self.possible_agents)
        triplets = self._arena.reset(self._rng, seed is not None)
        told = reset_infos(self._arena.fleet)
        return (
            {agent: observations(triplets[robot]) for robot, agent in enumerate(self.agents)},
            {agent: of_robot(told, robot) for robot, agent in enumerate(self.agents)},
        )

    def step(
        self, actions: dict[str, FloatArray]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Drive for one control period; whoever is left must be told how.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset.
            KeyError: an agent has no action.
            ValueError: an action is not ``(3,)`` finite numbers.
        """
        robots = [self.possible_agents.index(agent) for agent in self.agents]
        everyone = np.zeros((len(self.possible_agents), 3), dtype=np.float32)
        for robot, agent in zip(robots, self.agents, strict=True):
            everyone[robot] = actions[agent]
        result = self._arena.advance(everyone)
        told = step_infos(result)
        acted = list(zip(robots, self.agents, strict=True))
        terminated = {agent: bool(result.terminated[robot]) for robot, agent in acted}
        truncated = {agent: bool(result.truncated[robot]) for robot, agent in acted}
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return (
            {agent: observations(result.triplets[robot]) for robot, agent in acted},
            {agent: float(result.rewards[robot]) for robot, agent in acted},
            terminated,
            truncated,
            {agent: of_robot(told, robot) for robot, agent in acted},
        )

    def render(self) -> Image | None:
        """An image ``(480, 480, 3)``, or None: a window shows itself at every step."""
        return self._arena.render()

    def close(self) -> None:
        """Close the window."""
        self._arena.close()
