"""Occupied cells of an image or grid -> closed outlines made of merged cell edges."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image

from scanpilot.types import BoolArray, DoubleArray

_Corner = tuple[int, int]
_Pixels = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def read_channels(path: Path) -> tuple[_Pixels, _Pixels]:
    """Colour channels ``(rows, columns, 1 or 3)`` and alpha ``(rows, columns)`` of an image, top row first.

    Whatever the image's kind (1, 8 or 16 bits, grey, palette, with or without alpha), values are
    0 to 255.

    Raises:
        OSError, ValueError: not an image, or none that can be decoded.
    """
    try:
        with Image.open(path) as image:
            if image.mode.startswith("I") or image.mode == "F":
                grey = np.asarray(image, dtype=np.float64)
                # 16-bit images are the only ones whose values exceed 255.
                grey = (
                    grey / 257.0 if image.mode.startswith("I;16") or grey.max(initial=0.0) > 255.0 else grey
                )
                return grey[:, :, None], np.full(grey.shape, 255.0)
            pixels = np.asarray(image.convert("RGBA"), dtype=np.float64)
            return pixels[:, :, :3], pixels[:, :, 3]
    except (Image.DecompressionBombError, SyntaxError, EOFError, struct.error) as error:
        # What Pillow raises for broken files besides OSError and ValueError.
        raise ValueError(str(error)) from error


def read_occupied(path: Path) -> BoolArray:
    """Pixels whose first channel is at most 127 as a grid, row 0 lowest; alpha is ignored.

    Raises:
        OSError, ValueError: not an image, or none that can be decoded.
    """
    channels, _ = read_channels(path)
    return np.asarray(channels[::-1, :, 0] <= 127.0)


def outline_loops(occupied: BoolArray) -> list[DoubleArray]:
    """Outlines of the occupied cells of a grid.

    Args:
        occupied: ``(rows, columns)``, row 0 lowest: cell (r, c) covers x in [c, c + 1], y in [r, r + 1].

    Returns:
        Closed loops ``(K, 2)`` of corners in cells, x first, the occupied side on the left, no
        three corners in line.
    """
    padded = np.zeros((occupied.shape[0] + 2, occupied.shape[1] + 2), dtype=np.int8)
    padded[1:-1, 1:-1] = occupied
    horizontal = _runs(np.diff(padded, axis=0))
    # Between columns the occupied side is on the left of the way *down* when it is to the right (+1).
    vertical = [((x, b), (x, a)) for (a, x), (b, _) in _runs(np.diff(padded, axis=1).T)]
    return _joined(horizontal, vertical)


def _runs(change: np.ndarray[tuple[int, ...], np.dtype[np.int8]]) -> list[tuple[_Corner, _Corner]]:
    """Directed runs of equal change along each row: forward for +1 (occupied above), backward for -1."""
    rows = change.shape[0]
    wide = np.zeros((rows, change.shape[1] + 2), dtype=np.int8)
    wide[:, 1:-1] = change
    turns = wide[:, 1:] != wide[:, :-1]
    runs: list[tuple[_Corner, _Corner]] = []
    row_of, at = np.nonzero(turns)
    # Consecutive turns of one row enclose a run of one value; runs of 0 are no edge.
    for k in range(len(at) - 1):
        if row_of[k] != row_of[k + 1]:
            continue
        value = wide[row_of[k], at[k] + 1]
        if value == 0:
            continue
        # Undo the one-cell padding: the edge between padded rows r and r + 1 is at height r.
        start, end, height = int(at[k]) - 1, int(at[k + 1]) - 1, int(row_of[k])
        runs.append(((start, height), (end, height)) if value > 0 else ((end, height), (start, height)))
    return runs


def _joined(
    horizontal: list[tuple[_Corner, _Corner]], vertical: list[tuple[_Corner, _Corner]]
) -> list[DoubleArray]:
    """Chain alternating horizontal and vertical runs into closed loops."""
    leaving: dict[_Corner, list[_Corner]] = {}
    for start, end in vertical:
        leaving.setdefault(start, []).append(end)
    following = dict[_Corner, list[_Corner]]()
    for start, end in horizontal:
        following.setdefault(start, []).append(end)
    loops: list[DoubleArray] = []
    for start in list(following):
        while following.get(start):
            loop: list[_Corner] = []
            at = start
            while True:
                loop.append(at)
                at = following[at].pop()
                loop.append(at)
                at = leaving[at].pop()
                if at == start:
                    break
            loops.append(np.array(loop, dtype=np.float64))
    return loops
