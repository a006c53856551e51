"""What a policy is, apart from its weights. Free of torch, so that a robot without it can read one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from scanpilot.observation import ObservationSpec
from scanpilot.robot import RobotSpec


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the networks.

    Attributes:
        convolution: ``patches``: kernel = stride (6, 3, 2, 1), done as reshape + linear, fast on
            CPUs; ``overlapping``: kernel 3, strides 2, 1, 1, 1, as in SAC-AE.
        filters: of each of the four convolutions.
        feature: F.
        actor_hidden, critic_hidden: widths of hidden layers.
        critic_layer_norm: LayerNorm before each activation of the critics.
        log_std_min, log_std_max: bounds of the actor's log standard deviation.
    """

    convolution: Literal["patches", "overlapping"] = "patches"
    filters: int = 32
    feature: int = 50
    actor_hidden: tuple[int, ...] = (256, 256)
    critic_hidden: tuple[int, ...] = (256, 256)
    critic_layer_norm: bool = True
    log_std_min: float = -5.0
    log_std_max: float = 0.0

    def __post_init__(self) -> None:
        if min(self.filters, self.feature, *self.actor_hidden, *self.critic_hidden) < 1:
            raise ValueError("network sizes must be positive")
        if not self.log_std_min < self.log_std_max:
            raise ValueError("log_std_min must be below log_std_max")


@dataclass(frozen=True)
class PolicyManifest:
    """What a policy is, apart from its weights; travels in ``policy.json``.

    Attributes:
        name: for people.
        robot: the robot it was trained for.
        observation: what it sees.
        network: sizes of its networks.
        control_period: seconds between two actions.
        training: how it was trained: command, seed, steps, minutes, ...
        evaluation: how well it drove, with episode counts and intervals.
    """

    name: str
    robot: RobotSpec
    observation: ObservationSpec
    network: NetworkConfig
    control_period: float
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
