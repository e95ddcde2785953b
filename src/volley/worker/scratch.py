# SPDX-License-Identifier: Apache-2.0
"""Directories that are removed when this process ends.

DataFusion's spill files have names, so a killed process would leave them behind. A shell waits for the end of this
process and then removes them.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# The pipe closes when the last process that could write to it has ended.
_REMOVE_SCRIPT = 'cat >/dev/null; exec rm -rf -- "$@"'


class Scratch:
    """A new directory in each of `parents`, removed by `close` or soon after this process ends."""

    def __init__(self, parents: Sequence[Path], prefix: str = "volley-worker-") -> None:
        self.directories = tuple(
            Path(tempfile.mkdtemp(prefix=prefix, dir=parent.resolve())) for parent in parents
        )
        self._remover = remove_on_exit(self.directories)

    def close(self) -> None:
        """Remove them now."""
        self._remover.communicate()


def remove_on_exit(directories: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start a process that removes these directories when this process ends or its stdin is closed."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE_SCRIPT, "volley-scratch", *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # It must not receive signals that are sent to the worker's process group.
        start_new_session=True,
    )
