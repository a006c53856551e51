"""Where the files shipped with the package lie: robots, worlds, released policies.

They are outside the import package (``config/``, ``worlds/``, ``models/`` at the repository's root)
because ROS looks for them under ``share/scanpilot`` of a prefix. This module finds them in a source
tree, after ``pip install`` and after ``colcon build`` alike. What they mean is not its business.
"""

from __future__ import annotations

import difflib
import os
import sysconfig
from pathlib import Path
from typing import Literal

Kind = Literal["robot", "world", "policy"]

_FOLDER: dict[Kind, str] = {"robot": "config/robots", "world": "worlds", "policy": "models"}
_SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "robot": (".yaml",),
    "world": (".world", ".yaml", ".sdf"),
    "policy": ("",),
}


def root() -> Path:
    """The folder that holds ``config``, ``worlds``, ``models`` and ``launch``.

    Raises:
        FileNotFoundError: the package was copied somewhere without its data files.
    """
    here = Path(__file__).resolve()
    # Above the module lies the root of a source tree, or the prefix of an installation (lib/pythonX.Y/...).
    prefixes = [*here.parents, Path(sysconfig.get_path("data"))]
    prefixes += [Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    candidates = [here.parents[2], *(prefix / "share" / "scanpilot" for prefix in prefixes)]
    for candidate in candidates:
        if (candidate / "config").is_dir() and (candidate / "package.xml").is_file():
            return candidate
    raise FileNotFoundError(
        f"the data files of scanpilot (share/scanpilot) were not found from {here}: reinstall the package"
        " with pip or colcon, or put the prefix that holds them into AMENT_PREFIX_PATH"
    )


def find(kind: Kind, name: str | Path) -> Path:
    """The file or folder of a robot, a world or a policy, given by the name of a shipped one or by a path.

    A bare word is first looked up among the shipped ones, so ``generic_diff`` means the same in every
    folder; ``./generic_diff`` is a path. A policy is a folder, the others are files.

    Raises:
        FileNotFoundError: there is neither; the message names the nearest shipped one, or all.
    """
    path = Path(name)
    shipped = names(kind)
    if str(name) in shipped:
        return shipped[str(name)]
    if path.exists():
        return path
    if path.name != str(name) or path.suffix in (".yaml", ".world", ".sdf"):
        raise FileNotFoundError(f"{kind} {path}: no such file or folder")
    near = difflib.get_close_matches(str(name), shipped, 1)
    hint = f"did you mean {near[0]}?" if near else f"shipped are: {', '.join(sorted(shipped)) or 'none'}"
    raise FileNotFoundError(f"{kind} {name}: neither shipped with scanpilot nor a path; {hint}")


def names(kind: Kind) -> dict[str, Path]:
    """The shipped robots, worlds or policies: from the name that `find` takes to the path."""
    found: dict[str, Path] = {}
    for path in sorted((root() / _FOLDER[kind]).glob("*")):
        if kind == "policy" and path.is_dir():
            found[path.name] = path
        elif path.suffix in _SUFFIXES[kind] and path.is_file():
            found.setdefault(path.stem, path)
    return found
