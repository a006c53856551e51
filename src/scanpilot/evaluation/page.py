"""Results as one HTML page that holds everything it shows and opens without a network.

Here episodes become numbers that a browser can draw; how it draws them is in ``page.html``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanpilot.evaluation.difficulty import histogram
from scanpilot.evaluation.episodes import Episode, Scene
from scanpilot.evaluation.metrics import path_efficiency
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray

# As page.html reads them: radians of a yaw and metres of a walker's radius; metres of a disc's radius.
_TURN, _RADIUS = 1e-4, 1e-3
# Of numbers, before base64 makes 4/3 of it: together with the rest below the promised 5 MB.
_LARGEST = 3_200_000
_FINEST = 0.2  # seconds between the poses that are kept, where the robot decides more often


def write_page(
    path: Path,
    results: Sequence[Mapping[str, Any]],
    driven: Sequence[Sequence[Episode]],
    paired: Sequence[Mapping[str, Any]],
    difficulty: Mapping[str, Any] | None,
) -> int:
    """Write the page of one evaluation.

    Args:
        path: file to write.
        results: one for each policy, as ``scanpilot eval --json`` has them.
        driven: the episodes of each policy.
        paired: from `paired.compare`.
        difficulty: from `difficulty.published`.

    Returns:
        Episodes that were left out for want of room; the best ones are.
    """
    blob = _Blob([e.world for episodes in driven for e in episodes])
    kept = _worst_scenes(driven)
    scenes, told, left_out = [], [], 0
    for policy, scene, own in kept:
        if blob.size + _bytes_of(scene) > _LARGEST:
            left_out += len(own)
            continue
        stride = max(1, round(_FINEST / own[0].period))
        scenes.append(_scene(blob, scene, own[0], stride))
        told += [_episode(e, policy, len(scenes) - 1, stride) for e in own]
    first = results[0]
    names = ", ".join(str(r["policy"]) for r in results)
    note = f" {left_out} of the best are counted but not drawn, for want of room." if left_out else ""
    data = {
        "title": f"{names} on {first['suite']} v{first['suite_version']}",
        "subtitle": f"{first['episodes']} episodes in {first['worlds']} worlds, seed {first['seed']}, in the "
        f"embedded simulator of scanpilot: {first['about']}.{note}",
        "policies": [{k: v for k, v in r.items() if k not in ("by_world", "difficulty")} for r in results],
        "paired": list(paired),
        "difficulty": difficulty,
        "detours": histogram(driven[0]),
        "unit": blob.unit,
        "worlds": blob.worlds,
        "scenes": scenes,
        "episodes": told,
        "blob": blob.encoded(),
    }
    template = resources.files("scanpilot.evaluation").joinpath("page.html").read_text(encoding="utf-8")
    # A name that closes the script must not; JSON knows the escaped slash.
    text = json.dumps(_finite(data), separators=(",", ":")).replace("</", "<\\/")
    path.write_text(template.replace("@DATA@", text), encoding="utf-8")
    return left_out


class _Blob:
    """All coordinates of the page as 16-bit whole numbers of ``unit`` metres; worlds appear once."""

    def __init__(self, worlds: Sequence[World]) -> None:
        reach = max(abs(v) for world in worlds for v in world.bounds)
        # A quarter more, for robots that leave their world.
        self.unit = max(0.01, 1.25 * reach / 32_000.0)
        self.worlds: list[dict[str, Any]] = []
        self.size = 0
        self._parts: list[NDArray[np.int16]] = []
        self._known: dict[str, int] = {}

    def add(self, values: DoubleArray | NDArray[np.float32], units: Sequence[float]) -> int:
        """Append rows of values, each column in a unit of its own; returns where they begin."""
        start = self.size // 2
        whole = np.rint(np.clip(np.asarray(values, np.float64) / units, -32_767, 32_767)).astype("<i2")
        self._parts.append(whole.reshape(-1))
        self.size += 2 * whole.size
        return start

    def world(self, world: World) -> int:
        """Its number on the page."""
        if world.name not in self._known:
            self._known[world.name] = len(self.worlds)
            start = self.size // 2
            for solid in world.solids:
                for loop in solid.loops:
                    self.add(loop, (self.unit, self.unit))
            discs = np.array([(d.x, d.y, d.radius) for d in world.discs], dtype=np.float64).reshape(-1, 3)
            self.add(discs, (self.unit, self.unit, _RADIUS))
            self.worlds.append(
                {
                    "name": world.name,
                    "bounds": [round(v, 3) for v in _drawn(world)],
                    "start": start,
                    "solids": [[len(loop) for loop in solid.loops] for solid in world.solids],
                    "discs": len(world.discs),
                }
            )
        return self._known[world.name]

    def encoded(self) -> str:
        parts = np.concatenate(self._parts) if self._parts else np.zeros(0, "<i2")
        return base64.b64encode(parts.tobytes()).decode("ascii")


def _drawn(world: World) -> tuple[float, float, float, float]:
    """What of a world is worth a look: where robots are, and the walls around it."""
    if world.area == world.bounds:
        return world.bounds
    (x0, y0, x1, y1), (a0, b0, a1, b1) = world.area, world.bounds
    return max(x0 - 0.2, a0), max(y0 - 0.2, b0), min(x1 + 0.2, a1), min(y1 + 0.2, b1)


def _worst_scenes(driven: Sequence[Sequence[Episode]]) -> list[tuple[int, Scene, list[Episode]]]:
    """Each policy's scenes with their episodes; those with the worst episode come first."""
    found: dict[int, tuple[int, Scene, list[Episode]]] = {}
    for policy, episodes in enumerate(driven):
        for episode in episodes:
            assert episode.scene is not None
            found.setdefault(id(episode.scene[0]), (policy, episode.scene[0], []))[2].append(episode)
    return sorted(found.values(), key=lambda scene: min(_goodness(e) for e in scene[2]))


def _goodness(episode: Episode) -> tuple[int, float]:
    return ("collision", "timeout", "success").index(episode.outcome), path_efficiency(episode)


def _bytes_of(scene: Scene) -> int:
    return 2 * (scene.tracks.size + scene.walkers.size)


def _scene(blob: _Blob, scene: Scene, episode: Episode, stride: int) -> dict[str, Any]:
    tracks, walkers = scene.tracks[::stride], scene.walkers[::stride]
    world = blob.world(episode.world)
    start = blob.add(tracks, (blob.unit, blob.unit, _TURN))
    blob.add(walkers, (blob.unit, blob.unit, _TURN))
    footprint = scene.footprint
    return {
        "world": world,
        "tracks": start,
        "steps": tracks.shape[0],
        "robots": tracks.shape[1],
        "walkers": walkers.shape[1],
        "period": episode.period * stride,
        "radius": footprint.radius,
        "polygon": footprint.polygon,
    }


def _episode(episode: Episode, policy: int, scene: int, stride: int) -> dict[str, Any]:
    assert episode.scene is not None
    return {
        "policy": policy,
        "scene": scene,
        "robot": episode.scene[1],
        "outcome": episode.outcome,
        "condition": episode.condition,
        # At this step of the track its robot stands at its next start: the end is told apart.
        "steps": math.ceil(len(episode.actions) / stride),
        "end": [round(float(v), 3) for v in episode.poses[-1]],
        "goal": [round(float(v), 2) for v in episode.goal[:2]],
        "seconds": round(episode.seconds, 2),
        "spl": round(path_efficiency(episode), 3),
        "clearance": round(episode.min_clearance, 3),
        "detour": round(episode.detour, 3),
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
