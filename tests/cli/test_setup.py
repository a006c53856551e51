"""The real set-up program in a doctored world: each thing that may be missing is named with its remedy.

Nothing is fetched: where packages are installed they are stubs, made here from the names in setup.cfg and
the versions in constraints.txt, in a folder that pip is pointed at.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE_PYTHON = Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info)
NEEDED = ("Makefile", "constraints.txt", "package.xml", "pyproject.toml", "setup.cfg", "setup.py")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="the wheels of ROS are for x86_64 Linux"
)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels that pip takes for everything scanpilot requires."""
    folder = tmp_path_factory.mktemp("wheels")
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    required = config["options"]["install_requires"]
    required += "".join(config["options.extras_require"].values())
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if match := re.match(r"([\w-]+)==([^;]+)(?:; python_version (<|>=) .3\.11.)?$", line):
            name, version, side = match.groups()
            if side is None or (side == "<") == (sys.version_info < (3, 11)):
                pins[name] = version
    for name in re.findall(r"^([A-Za-z][\w-]*)", required, flags=re.MULTILINE):
        modules = {"torch": ["torch"], "ros-jazzy-rclpy": ["rclpy"]}.get(name, [])
        make_wheel(folder, name, pins[name.lower()], {f"{module}/__init__.py": b"" for module in modules})
    make_wheel(folder, "setuptools", pins["setuptools"], installed_files("setuptools"))
    return folder


def installed_files(name: str) -> dict[str, bytes]:
    """A pure Python package as it lies here, for one that cannot be a stub."""
    version = metadata.version(name)
    files = {str(f): Path(str(f.locate())) for f in metadata.files(name) or ()}
    kept = {n: p for n, p in files.items() if not n.startswith((f"{name}-{version}.dist-info/", ".."))}
    entry_points = f"{name}-{version}.dist-info/entry_points.txt"
    kept[entry_points] = files[entry_points]
    return {n: p.read_bytes() for n, p in kept.items() if p.suffix != ".pyc"}


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    contents = dict(files)
    contents[f"{stem}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    contents[f"{stem}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in contents).encode()
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, data in contents.items():
            wheel.writestr(path, data)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What set-up reads of the repository, with an import package that needs nothing."""
    clone = tmp_path / "scan pilot"  # with a space, as some people's folders have
    shutil.copytree(ROOT / "scripts", clone / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "resource", clone / "resource")
    for name in NEEDED:
        shutil.copy(ROOT / name, clone)
    (clone / "src/scanpilot").mkdir(parents=True)
    (clone / "src/scanpilot/__init__.py").write_text('__version__ = "0.1.0"\n')
    return clone


class Machine:
    """A clean environment to run set-up in: its own PATH, home and settings."""

    def __init__(self, clone: Path, stubs: Path, tmp_path: Path) -> None:
        self.clone = clone
        self.bin = tmp_path / "bin"
        self.bin.mkdir()
        for tool in ("cat", "dirname", "env", "make", "sh", "uname"):
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
        (self.bin / "python3").symlink_to(BASE_PYTHON)
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(stubs),
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "SETUP_NEED_MB": "10",
        }

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def set_up(self, profile: str = "demo", **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("sh", "scripts/setup.sh", profile, **environment)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.clone,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def machine(clone: Path, stubs: Path, tmp_path: Path) -> Machine:
    return Machine(clone, stubs, tmp_path)


def refused(result: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    said = result.stderr
    assert said.startswith("setup: ")
    for text in expected:
        assert text in said
    assert "Traceback" not in said


def test_no_python_is_named_with_what_was_found(machine: Machine) -> None:
    (machine.bin / "python3").unlink()
    machine.program("python3", "echo 3 9")
    machine.program("python3.12", "exit 127")  # like a version manager's shim for a version that is not there
    if Path("/usr/bin/python3").exists():
        # It is asked too, so that a shadowed system Python is found; hide it from this run.
        script = machine.clone / "scripts/setup.sh"
        script.write_text(script.read_text().replace("/usr/bin/python3 ", ""))
    refused(machine.set_up(), "no Python 3.10 to 3.14 found", "python3 (3.9)", "python3-venv", "PYTHON=")


def test_the_named_python_must_serve(machine: Machine) -> None:
    old = machine.program("old", "echo 3 9")
    refused(machine.set_up(PYTHON=str(old)), f"PYTHON={old} is Python 3.9", "needed is 3.10 to 3.14")
    new = machine.program("new", "echo 3 15")
    refused(machine.set_up(PYTHON=str(new)), "is Python 3.15", "needed is 3.10 to 3.14")
    refused(machine.set_up(PYTHON="/no/such/python"), "PYTHON=/no/such/python does not run")


def test_an_old_python3_is_passed_over_for_a_newer_one(machine: Machine) -> None:
    (machine.bin / "python3").unlink()
    machine.program("python3", "echo 3 9")
    (machine.bin / "python3.11").symlink_to(BASE_PYTHON)
    # It got as far as the disk: a Python was found.
    refused(machine.set_up(SETUP_NEED_MB="1000000000"), "free disk")


def test_python_without_ensurepip(machine: Machine, tmp_path: Path) -> None:
    # What Debian's python3 is without the package python3-venv.
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    machine.program("python3", f'PYTHONPATH="{tmp_path}/site" exec "{BASE_PYTHON}" "$@"')
    version = "{}.{}".format(*sys.version_info)
    refused(machine.set_up(), "no module ensurepip", f"sudo apt install python{version}-venv")


@pytest.mark.parametrize("platform", ["Linux aarch64", "Darwin arm64"])
def test_platform_without_ros_wheels(machine: Machine, platform: str) -> None:
    system, processor = platform.split()
    machine.program("uname", f'[ "$1" = -s ] && echo {system} || echo {processor}')
    refused(
        machine.set_up(), f"no ROS 2 wheels for {system} on {processor}", "source /opt/ros/", "pip install ."
    )


def test_too_little_disk(machine: Machine) -> None:
    refused(machine.set_up(SETUP_NEED_MB="1000000000"), "1000000000 MB of free disk are needed", "Make room")
    assert not (machine.clone / ".venv").exists()


def test_sourced_ros_of_another_python(machine: Machine) -> None:
    refused(
        machine.set_up(AMENT_PREFIX_PATH="/opt/ros/jazzy", ROS_DISTRO="jazzy", PYTHON=str(BASE_PYTHON)),
        "ROS 2 jazzy is sourced",
        "cannot import its rclpy",
        "Leave PYTHON unset",
    )
    script = machine.clone / "scripts/setup.sh"
    script.write_text(script.read_text().replace("/usr/bin/python3 ", ""))
    refused(
        machine.set_up(AMENT_PREFIX_PATH="/opt/ros/jazzy", ROS_DISTRO="jazzy"),
        "no Python found here can import its rclpy: python3 (",
        "PYTHON=/usr/bin/python3",
    )


def test_unreachable_index_names_pip_and_keeps_what_was_there(machine: Machine) -> None:
    # Port 9 (discard) of this machine: refused at once.
    offline = {"PIP_NO_INDEX": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    result = machine.set_up(**offline, PIP_FIND_LINKS="")
    refused(result, "the package index could not be reached", "Connection refused", "then run the same make")
    # Back online: the same command goes on in the .venv that is there.
    again = machine.set_up()
    assert again.returncode == 0, again.stderr
    assert "anew" not in again.stdout


def test_set_up_from_nothing_again_and_broken(machine: Machine) -> None:
    venv = machine.clone / ".venv"

    first = machine.run("make", "setup")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "ROS 2 Jazzy from wheels" in first.stdout
    # A prefix of ROS: with AMENT_PREFIX_PATH=.venv its tools see the package.
    assert (venv / "share/scanpilot/package.xml").is_file()
    assert (venv / "share/ament_index/resource_index/packages/scanpilot").is_file()
    assert os.access(venv / "lib/scanpilot/policy_node", os.X_OK)

    started = time.monotonic()
    for profile in ("test", "demo"):  # what tests need includes what the demo needs
        second = machine.set_up(profile)
        assert (second.returncode, second.stdout) == (0, "")
    assert time.monotonic() - started < 10

    # Something to do is recognised; too little disk keeps these from doing it, which takes longer.
    idle = {"SETUP_NEED_MB": "1000000000"}
    constraints = machine.clone / "constraints.txt"
    pinned = constraints.read_text()
    constraints.write_text(pinned + "# changed\n")
    changed = machine.set_up(**idle)
    refused(changed, "free disk")
    assert "anew" not in changed.stdout
    constraints.write_text(pinned)

    state = json.loads((venv / "scanpilot-setup.json").read_text())
    for key, value, reason in (
        ("busy", True, "an earlier set-up was interrupted"),
        ("root", "/elsewhere", "root was /elsewhere"),
        ("ros", "humble", "ros was humble, is now wheels"),
    ):
        (venv / "scanpilot-setup.json").write_text(json.dumps({**state, key: value}))
        assert f"anew: {reason}" in machine.set_up(**idle).stdout
    (venv / "scanpilot-setup.json").write_text(json.dumps({**state, "python": "3.9"}))
    named = machine.set_up(**idle, PYTHON=str(BASE_PYTHON))
    assert "anew: python was 3.9" in named.stdout

    # Killed while the environment was made.
    shutil.rmtree(venv)
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text("")
    repaired = machine.set_up()
    assert repaired.returncode == 0, repaired.stderr
    assert "anew: the one here is incomplete" in repaired.stdout
    assert machine.run(".venv/bin/python", "-c", "import scanpilot, torch, rclpy").returncode == 0


def test_a_sourced_ros_is_used(machine: Machine, tmp_path: Path) -> None:
    """Its rclpy stays the one imported, none of the wheels is installed, and numpy fits its messages."""
    ros = tmp_path / "opt/ros/jazzy/lib/python3/site-packages"
    for module in ("rclpy", "numpy"):
        (ros / module).mkdir(parents=True)
    (ros / "rclpy/__init__.py").write_text("")
    (ros / "numpy/__init__.py").write_text('__version__ = "1.26.4"\n')
    make_wheel(Path(machine.environment["PIP_FIND_LINKS"]), "numpy", "1.26.4", {})
    sourced = {
        "AMENT_PREFIX_PATH": str(tmp_path / "opt/ros/jazzy"),
        "ROS_DISTRO": "jazzy",
        "PYTHONPATH": str(ros),
    }
    result = machine.set_up(**sourced)
    assert result.returncode == 0, result.stderr
    assert "ROS 2 jazzy as sourced" in result.stdout
    probe = "import rclpy; print(rclpy.__file__)"
    found = machine.run(".venv/bin/python", "-c", probe, **sourced).stdout
    assert found.startswith(str(ros))
    packages = machine.run(".venv/bin/python", "-m", "pip", "list", PYTHONPATH="").stdout.split()
    assert "torch" in packages
    assert "1.26.4" in packages
    assert not [name for name in packages if name.startswith("ros-")]
