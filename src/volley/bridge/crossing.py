"""Where rows wait between the engines, as files that the tasks of one write and those of the other read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from volley.plan.nodes import WriteFiles
from volley.worker.parquet import Written
from volley.worker.scratch import Scratch


class Crossing:
    """The files of one query, below `home`, which all tasks of both engines must see. Gone with the query.

    `run` computes the rows of the native side.
    """

    def __init__(self, home: Path, run: Callable[[WriteFiles], list[Written]]) -> None:
        self.run = run
        self._home = home
        self._scratch: Scratch | None = None
        self._count = 0

    def directory(self) -> Path:
        """The name of a directory that is not there yet."""
        if self._scratch is None:
            # Removed even when this process is killed.
            self._scratch = Scratch((self._home,), prefix="volley-handover-")
        self._count += 1
        return self._scratch.directories[0] / str(self._count)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
