"""What people and machines are told: lines, events, pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scanpilot.evaluation import report
from scanpilot.failures import Failure
from scanpilot.observation import ObservationSpec
from scanpilot.training_log import TrainingLog

SUMMARY: dict[str, Any] = {
    "success": 0.5,
    "success_interval": [0.4, 0.6],
    "collision": 0.3,
    "timeout": 0.2,
    "smoothness": 0.4,
    "action_change": 0.1,
    "time": 9.0,
    "episodes": 10,
}


def test_a_failure_is_told_to_people_and_machines(tmp_path: Path) -> None:
    out = io.StringIO()
    log = TrainingLog(tmp_path, Console(file=out, width=300))
    log.failure(12.0, 340, 56, Failure("standing", "robots drive at 2 % [sic]", "a smaller task.collision"))
    log.close()
    assert "warning: standing: robots drive at 2 % [sic]. Try: a smaller task.collision" in out.getvalue()
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert (line["kind"], line["failure"], line["steps"]) == ("failure", "standing", 340)
    assert line["advice"] == "a smaller task.collision"


def test_progress_says_how_smooth_and_how_warm(tmp_path: Path) -> None:
    out = io.StringIO()
    log = TrainingLog(tmp_path, Console(file=out, width=300))
    numbers = {"charts/success": 0.25, "values/alpha": 0.0123, "charts/action_change": 0.456}
    log._last_print = -1e9
    log.progress(0.5, 30.0, 1000, 100, numbers)
    log.close()
    assert "success 25.0 %" in out.getvalue()
    assert "temperature 0.0123" in out.getvalue()
    assert "action change 0.456" in out.getvalue()


def test_reconstructed_scans_go_to_tensorboard_and_to_a_file(tmp_path: Path) -> None:
    spec = ObservationSpec(beams=36, frames=1)
    scans = np.full((2, 36), 3.0, np.float32)
    scans[0, :5] = spec.range_max
    figure = report.reconstructions_figure(scans, scans + 0.25, spec)
    # What returned nothing is no error: 0.25 m everywhere else.
    assert [axes.get_title() for axes in figure.axes] == ["mean error 0.25 m"] * 2
    log = TrainingLog(tmp_path, Console(file=io.StringIO()))
    log.validation(1.0, 77, 3, SUMMARY, {"reconstructions": figure})
    log.close()
    picture = np.asarray(Image.open(tmp_path / "pictures" / "reconstructions.png"))
    assert picture.shape == (400, 800, 3)
    assert picture.std() > 1.0
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Images("reconstructions")
    assert (event.step, event.width, event.height) == (77, 800, 400)
