"""How the package's inner loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F, **options: Any) -> _F:
    """The function as machine code that lets go of the GIL; kept on disk where that can be written."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}, **options}
    try:
        return cast(_F, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        # Neither the source's folder nor the user's cache can be written: compile anew in every process.
        return cast(_F, numba.njit(**options)(function))
