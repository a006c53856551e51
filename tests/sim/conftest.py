"""Where recorded data of other people lies; it is read in place and never copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the recorded data: ``SCANPILOT_DATA`` or ``../shared/data`` from the project's root."""
    folder = Path(os.environ.get("SCANPILOT_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"recorded data is absent: no folder {folder} (SCANPILOT_DATA names another)")
    return folder
