"""What pip and colcon install: code, data files, executables; and what importing it costs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest

import scanpilot

ROOT = Path(__file__).resolve().parents[2]
DATA = ("config", "launch", "models", "worlds")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository without what builds left in it: building in place would leave more."""
    left = shutil.ignore_patterns(
        ".git",
        ".venv*",
        "__pycache__",
        "*.egg-info",
        "build",
        "install",
        "log",
        ".*_cache",
        "runs",
        ".hypothesis",
    )
    return Path(shutil.copytree(ROOT, tmp_path / "clone", ignore=left, symlinks=True))


def data_files(root: Path) -> set[str]:
    files = (f for folder in DATA for f in (root / folder).rglob("*") if f.is_file())
    return {str(f.relative_to(root)) for f in files if "__pycache__" not in f.parts}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_one_version_everywhere() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert package.findtext("name") == "scanpilot"
    assert package.findtext("version") == scanpilot.__version__ == metadata.version("scanpilot")
    assert f"## {scanpilot.__version__}" in (ROOT / "CHANGELOG.md").read_text().replace("[", "").replace(
        "]", ""
    )


def test_every_pin_names_one_version_for_each_python() -> None:
    pins: dict[str, list[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, marker = re.fullmatch(r"([\w.-]+)==[\w.]+(?:; (.*))?", line).groups()  # type: ignore[union-attr]
            pins.setdefault(name, []).append(marker or "always")
    both = ['python_version < "3.11"', 'python_version >= "3.11"']
    for name, markers in pins.items():
        assert markers in (["always"], both, both[:1], both[1:]), name


def test_importing_costs_no_heavy_package() -> None:
    heavy = ["matplotlib", "rclpy", "stable_baselines3", "tensorboard", "torch"]
    probe = f"import sys, scanpilot; print([m for m in {heavy} if m in sys.modules])"
    assert run(sys.executable, "-c", probe, cwd=ROOT).strip() == "[]"


def test_pip_installs_what_the_package_needs_at_run_time(clone: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    # Force, or pip would see the editable install of the environment that the tests run in.
    run(*pip, "--ignore-installed", "--prefix", prefix, ".", cwd=clone)

    assert data_files(prefix / "share/scanpilot") == data_files(clone)
    assert (prefix / "share/ament_index/resource_index/packages/scanpilot").is_file()
    for script in ("scanpilot", "policy_node", "simulator_node"):
        assert os.access(prefix / "bin" / script, os.X_OK)

    library = next(prefix.glob("lib/python*/site-packages"))
    assert (library / "scanpilot/py.typed").is_file()
    probe = """
import json, scanpilot
from scanpilot import resources
policies = {name: scanpilot.load_policy(path).identity for name, path in resources.names("policy").items()}
kinds = {kind: list(resources.names(kind)) for kind in ("robot", "world")}
print(json.dumps({"file": scanpilot.__file__, "root": str(resources.root()), "policies": policies, **kinds}))
"""
    found = json.loads(run(sys.executable, "-c", probe, cwd=tmp_path, PYTHONPATH=str(library)))
    assert found["file"] == str(library / "scanpilot/__init__.py")
    assert found["root"] == str(prefix / "share/scanpilot")
    assert "generic_diff" in found["robot"]
    assert found["world"]
    assert "generic_diff" in found["policies"]


@pytest.mark.skipif(
    shutil.which("colcon") is None, reason="colcon is not on PATH (it wants an older setuptools than ours)"
)
@pytest.mark.parametrize("layout", ["--merge-install", "--symlink-install"])
def test_colcon_builds_the_root_as_an_ament_python_package(clone: Path, layout: str) -> None:
    workspace = clone / "ros2_ws"
    environment = dict.fromkeys(("PYTHONPATH", "LD_LIBRARY_PATH", "AMENT_PREFIX_PATH"), "")
    listed = run("colcon", "list", cwd=workspace, **environment)
    assert listed.split() == ["scanpilot", "src/scanpilot", "(ros.ament_python)"]

    run("colcon", "build", layout, cwd=workspace, **environment)
    prefix = workspace / "install" / ("" if layout == "--merge-install" else "scanpilot")
    assert data_files(prefix / "share/scanpilot") == data_files(clone)
    assert (prefix / "share/scanpilot/package.xml").is_file()
    assert (prefix / "share/ament_index/resource_index/packages/scanpilot").exists()
    for script in ("scanpilot", "policy_node", "simulator_node"):
        assert os.access(prefix / "lib/scanpilot" / script, os.X_OK)
