"""Adds to setup.cfg what cannot stand there: data files that keep their folders, and python_requires."""

from pathlib import Path

from setuptools import setup

DATA_FOLDERS = ("config", "launch", "models", "worlds")
SHARE = "share/scanpilot"


def data_files() -> list[tuple[str, list[str]]]:
    """What `scanpilot.resources`, `ros2 launch` and the ament index look for under the prefix."""
    entries = [
        ("share/ament_index/resource_index/packages", ["resource/scanpilot"]),
        (SHARE, ["package.xml"]),
    ]
    for top in DATA_FOLDERS:
        for folder in [Path(top), *sorted(p for p in Path(top).rglob("*") if p.is_dir())]:
            files = sorted(str(f) for f in folder.glob("*") if f.is_file())
            if files and folder.name != "__pycache__":
                entries.append((f"{SHARE}/{folder.as_posix()}", files))
    return entries


# python_requires from setup.cfg becomes an object that colcon cannot read back; from here it stays a string.
setup(data_files=data_files(), python_requires=">=3.10")
