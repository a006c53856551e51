"""Occupied cells of an image or grid -> closed outlines made of merged cell edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from scanpilot.types import BoolArray, DoubleArray

_Corner = tuple[int, int]


def read_grey(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """First channel of an image, ``(rows, columns)`` in 0..255, top row first; alpha is ignored.

    Raises:
        OSError, ValueError: not an image, or none that can be decoded.
    """
    with Image.open(path) as image:
        if image.mode in ("I;16", "I;16B", "I;16L", "I"):
            grey = np.asarray(image.convert("I"), dtype=np.float64)
            return grey / 257.0 if grey.max() > 255.0 else grey
        if image.mode == "F":
            return np.asarray(image, dtype=np.float64)
        if image.mode in ("L", "LA"):
            return np.asarray(image.getchannel(0), dtype=np.float64)
        return np.asarray(image.convert("RGB"), dtype=np.float64)[:, :, 0]


def read_occupied(path: Path) -> BoolArray:
    """Dark pixels (at most 127) of an image as a grid, row 0 lowest."""
    return np.asarray(read_grey(path)[::-1] <= 127.0)


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
