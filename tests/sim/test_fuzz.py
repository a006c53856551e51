"""Ten seconds of `fuzz_readers.py`, whose longer runs are made by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_mutated_real_files_load_or_are_refused(data: Path) -> None:
    script = Path(__file__).with_name("fuzz_readers.py")
    command = [sys.executable, str(script), "--minutes", "0.17", "--data", str(data)]
    # A process of its own, because a hang or a crash ends it.
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cases from 0 on" in done.stdout
