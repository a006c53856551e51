"""Creates .venv-kilted beside .venv: ROS 2 Kilted's wheels, and everything else from .venv.

Two distributions cannot share an environment, but torch and the tools can be lent: a .pth file puts .venv's
packages behind Kilted's own, whose names come first. Run by `make test-kilted`, with .venv's Python.
"""

from __future__ import annotations

import configparser
import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-kilted"
STATE = VENV / "scanpilot-setup.sha256"
CONSTRAINTS = ROOT / "constraints-kilted.txt"


def main() -> int:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options.extras_require"]["ros"].replace("-jazzy-", "-kilted-").split()
    fingerprint = hashlib.sha256(
        "\n".join([sys.version, sys.prefix, *wanted, CONSTRAINTS.read_text()]).encode()
    ).hexdigest()
    if STATE.is_file() and STATE.read_text() == fingerprint:
        return 0
    print("setup: installing ROS 2 Kilted from wheels into .venv-kilted", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    python = VENV / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--quiet",
    ]
    subprocess.run([*pip, "--constraint", CONSTRAINTS, *wanted], check=True)
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lent = [str(ROOT / "src"), sysconfig.get_path("purelib")]
    Path(own, "scanpilot-lent.pth").write_text("\n".join(lent) + "\n")
    STATE.write_text(fingerprint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
