"""Creates .venv, or brings it up to date. Run by setup.sh, with the standard library alone.

What was installed is written to a file in .venv with a fingerprint of everything it depends on, so
that a second run has nothing to do. A run that was interrupted leaves that file saying so, and the
next one starts over.
"""

from __future__ import annotations

import argparse
import configparser
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / "scanpilot-setup.json"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "scanpilot-setup.log"
INPUTS = ("constraints.txt", "pyproject.toml", "setup.cfg", "setup.py", "scripts/set_up.py")

SHARED = ("config", "launch", "models", "worlds", "package.xml")
CAPTURE: dict[str, Any] = {"capture_output": True, "text": True}
VERSION = "{}.{}".format(*sys.version_info)
WHEELS = "wheels"
EXTRAS = {
    "demo": ("ros",),
    "test": ("ros", "bags", "gym", "baselines", "atari", "cuda", "ray", "onnx", "export", "dev"),
}
SERVED_BY = {"demo": ("demo", "test"), "test": ("test",)}

# Measured: 1.9 GB in .venv with the CPU build of torch and 0.4 GB of Warp, plus the archives while they are
# unpacked.
NEED_MB_CPU = 3_000
NEED_MB_CUDA = 10_000
NEED_MB_UPDATE = 500

UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out|NameResolutionError"
    r"|Temporary failure in name|Connection refused|Connection reset|Network is unreachable|ProxyError"
    r"|SSLError|Max retries exceeded"
    r"|\(from versions: none\)|HTTP error 5\d\d"
)


class SetupError(Exception):
    """What is wrong; the following lines say what to do about it."""


class UnreachableError(SetupError):
    """The package index did not answer; nothing was installed."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Create .venv or bring it up to date.")
    parser.add_argument("profile", choices=sorted(EXTRAS))
    parser.add_argument("--ros", required=True, help="name of the sourced distribution, or 'wheels'")
    args = parser.parse_args()
    try:
        # Two makes at once would install over each other; so the second waits and finds the work done.
        with (ROOT / "pyproject.toml").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            set_up(args.profile, args.ros)
    except SetupError as error:
        print("setup: " + str(error).replace("\n", "\n       "), file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: cannot create {VENV}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the next run starts over", file=sys.stderr)
        return 130
    return 0


def set_up(profile: str, ros: str) -> None:
    state = read_state()
    built_from = {"root": str(ROOT), "python": VERSION, "ros": ros}
    if not os.environ.get("PYTHON") and "python" in state:
        # Once made with PYTHON=..., .venv stays with that one: nobody repeats it each time.
        built_from["python"] = state["python"]
    unchanged = {key: state.get(key) for key in built_from} == built_from
    fingerprint = fingerprint_of_inputs()
    done = {p for p, f in state.get("profiles", {}).items() if unchanged and f == fingerprint}
    damage = damage_of_venv(state, built_from)
    if not damage and done.intersection(SERVED_BY[profile]):
        return

    started = time.monotonic()
    if damage:
        print(f"setup: .venv has to be made anew: {damage}", flush=True)
    check_venv_modules()
    check_disk(NEED_MB_CPU if damage or not VENV.exists() else NEED_MB_UPDATE)
    if damage or not VENV.exists():
        create_venv(with_system_packages=ros != WHEELS)
        built_from["python"] = VERSION
    constraints = write_constraints(ros)
    check_torch(constraints)

    write_state({**built_from, "busy": True, "profiles": {}})
    try:
        install(profile, ros, constraints)
    except UnreachableError:
        # pip downloads everything before it installs anything: what was there still works.
        write_state({**built_from, "busy": False, "profiles": state.get("profiles", {}) if unchanged else {}})
        raise
    link_into_prefix()
    check_imports()
    write_state({**built_from, "busy": False, "profiles": dict.fromkeys({*done, profile}, fingerprint)})
    print(f"setup: ready in {time.monotonic() - started:.0f} s", flush=True)


def fingerprint_of_inputs() -> str:
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def read_state() -> dict[str, Any]:
    try:
        state = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(state: dict[str, Any]) -> None:
    STATE.write_text(json.dumps(state, indent=1))


def damage_of_venv(state: dict[str, Any], built_from: dict[str, str]) -> str | None:
    """Why an existing .venv cannot be kept; None if it can, or if there is none."""
    if not VENV.exists():
        return None
    if state.get("busy"):
        return "an earlier set-up was interrupted"
    for key, value in built_from.items():
        if key in state and state[key] != value:
            return f"{key} was {state[key]}, is now {value}"
    probe = "import pip, sys; print(sys.version_info[0], sys.version_info[1], sep='.')"
    try:
        found = subprocess.run(
            [PYTHON, "-c", probe], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "the one here is incomplete"
    return None if found == built_from["python"] else f"the one here has Python {found}"


def check_venv_modules() -> None:
    # Debian and Ubuntu ship venv without ensurepip unless python3-venv is installed.
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"{sys.executable} has no module {' and no module '.join(missing)}, needed to create .venv.\n"
            f"Debian, Ubuntu: sudo apt install python{VERSION}-venv; elsewhere, name a complete Python:\n"
            "make setup PYTHON=/path/to/python3"
        )


def check_disk(need_mb: int) -> None:
    need_mb = int(os.environ.get("SETUP_NEED_MB", need_mb))
    free_mb = shutil.disk_usage(ROOT).free // 1_000_000
    if free_mb < need_mb:
        raise SetupError(
            f"{need_mb} MB of free disk are needed under {ROOT}, there are {free_mb} MB.\n"
            "Make room, or move the repository to a larger disk. SETUP_NEED_MB=0 skips this check."
        )


def create_venv(with_system_packages: bool) -> None:
    print(f"setup: creating .venv with Python {sys.version.split()[0]} ({sys.executable})", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if with_system_packages:
        command.append("--system-site-packages")
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise SetupError(f"{' '.join(command)} failed:\n{result.stdout.strip()}")


def write_constraints(ros: str) -> Path:
    """constraints.txt, with the numpy that a sourced ROS was compiled against in place of its own."""
    text = (ROOT / "constraints.txt").read_text()
    if ros != WHEELS:
        result = subprocess.run([sys.executable, "-c", "import numpy; print(numpy.__version__)"], **CAPTURE)
        if result.stdout.startswith("1."):
            text = re.sub(r"^numpy==.*\n", "", text, flags=re.MULTILINE) + "numpy<2\n"
    path = VENV / "scanpilot-constraints.txt"
    path.write_text(text)
    return path


def check_torch(constraints: Path) -> None:
    """Before gigabytes are fetched: is torch here already, and if not, which build would come?"""
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0:
        return
    pip = pip_command(constraints, "install", "--quiet", "--dry-run", "--no-deps", "--report", "-", "torch")
    result = subprocess.run(pip, **CAPTURE)
    if result.returncode:
        raise pip_error(result.stderr)
    requirements = json.loads(result.stdout)["install"][0]["metadata"].get("requires_dist", [])
    if any(requirement.startswith("nvidia-") for requirement in requirements):
        print(
            "setup: the package index has torch built for CUDA, several gigabytes. A CPU build is enough:\n"
            "       make setup TORCH_INDEX=(the address of PyTorch's index of CPU wheels)",
            flush=True,
        )
        check_disk(NEED_MB_CUDA)


def install(profile: str, ros: str, constraints: Path) -> None:
    extras = [extra for extra in EXTRAS[profile] if extra != "ros" or ros == WHEELS]
    source = f"ROS 2 {ros} as sourced" if ros != WHEELS else "ROS 2 Jazzy from wheels"
    print(f"setup: installing scanpilot and what it needs ({profile}; {source}); log: {LOG}", flush=True)
    LOG.write_text("")
    # setuptools first, so that no isolated build environment has to be fetched for one editable install.
    run_pip(pip_command(constraints, "install", "setuptools"))
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    run_pip(pip_command(constraints, "install", "--no-build-isolation", "--editable", target))


def pip_command(constraints: Path, command: str, *arguments: str) -> list[str]:
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", command, "--constraint", str(constraints)]
    index = os.environ.get("TORCH_INDEX")
    return [*pip, *(["--extra-index-url", index] if index else []), *arguments]


def run_pip(command: list[str]) -> None:
    """Runs pip with its output in the log and, on a terminal, its newest line on the screen."""
    screen = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1
    lines = []
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            [*command, "--progress-bar", "off"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            log.write(line)
            if screen:
                print("\r" + line.strip()[:width].ljust(width), end="", flush=True)
    if screen:
        print("\r" + " " * width, end="\r", flush=True)
    if process.returncode:
        raise pip_error("".join(lines))


def pip_error(output: str) -> SetupError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # pip's last word on an index that does not answer is that no version suits: look for the cause.
    unreachable = next((line for line in lines if UNREACHABLE.search(line)), None)
    if unreachable:
        return UnreachableError(
            f"the package index could not be reached. pip said:\n{unreachable}\n"
            "Check the network (and PIP_INDEX_URL, HTTPS_PROXY if you need them), then run the same make\n"
            "again: what was downloaded is kept."
        )
    errors = [line for line in lines if line.lower().startswith("error")]
    said = "\n".join(["pip said:", *(errors or lines)[-3:]])
    if "No space left on device" in output:
        return SetupError(
            f"the disk is full. {said}\n"
            f"Make room under {ROOT} and {os.environ.get('TMPDIR', '/tmp')} (TMPDIR moves the latter), then\n"
            "run the same make again."
        )
    return SetupError(f"the installation failed. {said}\nEverything pip wrote is in {LOG}.")


def link_into_prefix() -> None:
    """Makes .venv a ROS prefix that holds this package: AMENT_PREFIX_PATH=.venv shows it to ros2 tools.

    pip installs data files of a wheel, but not of an editable install, and knows no lib/scanpilot.
    """
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    scripts = config["options.entry_points"]["console_scripts"].strip().splitlines()
    links = {VENV / "share" / "scanpilot" / name: ROOT / name for name in SHARED}
    links[VENV / "share/ament_index/resource_index/packages/scanpilot"] = ROOT / "resource/scanpilot"
    for script in scripts:
        name = script.partition("=")[0].strip()
        links[VENV / "lib/scanpilot" / name] = VENV / "bin" / name
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def check_imports() -> None:
    for module in ("torch", "rclpy", "scanpilot"):
        result = subprocess.run([PYTHON, "-c", f"import {module}"], **CAPTURE)
        if result.returncode:
            reason = result.stderr.strip().splitlines()[-1:] or [f"exit status {result.returncode}"]
            raise SetupError(
                f"everything is installed, but `import {module}` fails in .venv: {reason[0]}\n"
                f"Remove {VENV} and try again; if it fails again, please report it with {LOG}."
            )


if __name__ == "__main__":
    sys.exit(main())
