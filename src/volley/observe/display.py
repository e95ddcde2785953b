# SPDX-License-Identifier: Apache-2.0
"""Shows a value in the cell of a notebook, or on standard output."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol


class Showable(Protocol):
    def __str__(self) -> str: ...

    def _repr_html_(self) -> str: ...


# What `show` has shown, by identity, and in which cell.
_shown: tuple[int, int] | None = None


def show(value: Showable) -> None:
    """Show a value now, wherever in a cell or program this is called."""
    global _shown
    here = shell()
    if here is None:
        print(value)
        return
    _publish(value)
    _shown = (id(value), here.execution_count)


def show_at_end(value: Showable) -> None:
    """For `_ipython_display_`: IPython shows what a cell ends with. Nothing when this cell has just shown it."""
    global _shown
    here = shell()
    already = here is not None and _shown == (id(value), here.execution_count)
    _shown = None
    if not already:
        _publish(value)


def shell() -> Any | None:
    """The IPython that runs this program; None in others, also where IPython is merely installed or imported."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _publish(value: Showable) -> None:
    # IPython is optional. If there is a shell, it is installed.
    display = importlib.import_module("IPython.display").display
    display({"text/plain": str(value), "text/html": value._repr_html_()}, raw=True)
