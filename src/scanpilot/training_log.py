"""How training goes: a live line for people, JSON lines and TensorBoard for machines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from scanpilot.failures import Failure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INTERVAL = 2.0


class TrainingLog:
    """Tells people and machines how a run goes.

    Args:
        run: the run's directory; ``log.jsonl`` is appended to, ``tensorboard/`` gets events, ``pictures/``
            the newest picture of each name.
        console: for people; where it is no terminal, a line every half minute is printed.
    """

    def __init__(self, run: Path, console: Console | None = None) -> None:
        # Imported here: it takes a second, which those who do not train need not wait.
        from torch.utils.tensorboard import SummaryWriter

        run.mkdir(parents=True, exist_ok=True)
        self._run = run
        self._file = open(run / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._tensorboard: Any = SummaryWriter(str(run / "tensorboard"))
        self._console = console or Console()
        self._live: Live | None = None
        self._last = 0.0
        self._last_print = 0.0
        self._previous: tuple[float, int, int] | None = None

    def due(self) -> bool:
        """Whether it is time for another report."""
        return time.monotonic() - self._last >= _INTERVAL

    def progress(
        self, fraction: float, seconds: float, steps: int, updates: int, numbers: dict[str, float]
    ) -> None:
        """Report losses and rates; ``fraction`` of the budget used, ``seconds`` of training so far."""
        self._last = time.monotonic()
        rates = self._rates(seconds, steps, updates)
        self._write("progress", seconds, steps, updates, {**numbers, **rates})
        left = seconds / fraction - seconds if fraction > 0.0 else 0.0
        cells = {
            "done": f"{100 * fraction:.0f} %",
            "left": _clock(left),
            "success": _percent(numbers, "charts/success"),
            "collision": _percent(numbers, "charts/collision"),
            "time-out": _percent(numbers, "charts/timeout"),
            "steps/s": f"{rates['charts/steps_per_s']:.0f}",
            "updates/s": f"{rates['charts/updates_per_s']:.1f}",
            "Q": _number(numbers, "values/q"),
            "temperature": _number(numbers, "values/alpha"),
            "action change": _number(numbers, "charts/action_change"),
            "scan error": _number(numbers, "losses/autoencoder"),
        }
        self._show(cells)

    def failure(self, seconds: float, steps: int, updates: int, failure: Failure) -> None:
        """Say that a known failure shows, what was seen, and what to try."""
        told = {"failure": failure.name, "seen": failure.seen, "advice": failure.advice}
        self._write("failure", seconds, steps, updates, {}, told)
        self._tensorboard.add_text("failure", str(failure), steps)
        self._console.print(f"[bold red]warning:[/] {escape(str(failure))}")

    def validation(
        self,
        seconds: float,
        steps: int,
        updates: int,
        summary: dict[str, Any],
        pictures: Mapping[str, Figure] | None = None,
    ) -> None:
        """Report a validation, with pictures of it."""
        for name, figure in (pictures or {}).items():
            self._draw(name, figure, steps)
        numbers = {
            f"validation/{name}": float(summary[name])
            for name in ("success", "collision", "timeout", "smoothness", "action_change", "time")
            if summary[name] is not None
        }
        self._write("validation", seconds, steps, updates, numbers, {"summary": summary})
        low, high = summary["success_interval"]
        self._console.print(
            f"validation after {_clock(seconds)}, {steps:,} steps, {updates:,} updates: "
            f"success {100 * summary['success']:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}), "
            f"collision {100 * summary['collision']:.1f} %, time-out {100 * summary['timeout']:.1f} % "
            f"of {summary['episodes']} episodes"
        )

    def _draw(self, name: str, figure: Figure, steps: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        self._tensorboard.add_image(name, pixels, steps, dataformats="HWC")
        folder = self._run / "pictures"
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{name}.png")

    def close(self) -> None:
        """Flush and let go."""
        if self._live is not None:
            self._live.stop()
        self._file.close()
        self._tensorboard.close()

    def _rates(self, seconds: float, steps: int, updates: int) -> dict[str, float]:
        before, self._previous = self._previous, (seconds, steps, updates)
        if before is None:
            return {"charts/steps_per_s": 0.0, "charts/updates_per_s": 0.0}
        span = max(seconds - before[0], 1e-9)
        return {
            "charts/steps_per_s": (steps - before[1]) / span,
            "charts/updates_per_s": (updates - before[2]) / span,
        }

    def _write(
        self,
        kind: str,
        seconds: float,
        steps: int,
        updates: int,
        numbers: dict[str, float],
        more: dict[str, Any] | None = None,
    ) -> None:
        line = {"kind": kind, "seconds": round(seconds, 3), "steps": steps, "updates": updates}
        self._file.write(json.dumps({**line, **numbers, **(more or {})}) + "\n")
        self._file.flush()
        for name, value in numbers.items():
            self._tensorboard.add_scalar(name, value, steps)

    def _show(self, cells: dict[str, str]) -> None:
        if self._console.is_terminal:
            table = Table(*cells, box=None, padding=(0, 2, 0, 0))
            table.add_row(*cells.values())
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(table, refresh=True)
        elif time.monotonic() - self._last_print > 30.0:
            self._last_print = time.monotonic()
            self._console.print("  ".join(f"{name} {value}" for name, value in cells.items()))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _percent(numbers: dict[str, float], name: str) -> str:
    return f"{100 * numbers[name]:.1f} %" if name in numbers else "-"


def _number(numbers: dict[str, float], name: str) -> str:
    return f"{numbers[name]:.3g}" if name in numbers else "-"
