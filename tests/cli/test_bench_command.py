"""``scanpilot bench sim`` as users call it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scanpilot import cli


def test_bench_sim_writes_rows_and_a_plot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "bench.json", tmp_path / "plot.png"
    sizes = ["--robots", "4", "--beams", "8", "16", "--worlds", "2", "--world", "demo", "--seconds", "0.05"]
    assert cli.main(["bench", "sim", *sizes, "--json", str(out), "--plot", str(picture)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["world"], row["robots"], row["worlds"], row["beams"]) for row in rows] == [
        ("demo", 4, 2, 8),
        ("demo", 4, 2, 16),
    ]
    assert picture.exists()
    printed = capfd.readouterr().out
    assert "demo: 10 m x 10 m, 88 segments" in printed
    # Tables fit where output goes to a file.
    if "COLUMNS" not in os.environ:
        assert max(map(len, printed.splitlines())) <= 80


def test_bench_sim_names_what_makes_no_sense(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "sim", "--robots", "7", "--worlds", "2"]) == 1
    assert "do not divide evenly" in capfd.readouterr().err
    assert cli.main(["bench", "sim", "--world", "nowhere"]) == 1
    assert "nowhere" in capfd.readouterr().err
