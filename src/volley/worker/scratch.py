# SPDX-License-Identifier: Apache-2.0
"""Directories that end with this process.

DataFusion gives the files that operators spill names, so a process that is killed would leave them behind. A shell that
does nothing but wait for the end of this process removes them then.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# The pipe ends when the last process that could write to it has ended.
_REMOVE_AT_THE_END = 'cat >/dev/null; exec rm -rf -- "$@"'


class Scratch:
    """A directory of its own in each of `parents`, gone soon after `close` or the end of this process."""

    def __init__(self, parents: Sequence[Path], prefix: str = "volley-worker-") -> None:
        self.directories = tuple(
            Path(tempfile.mkdtemp(prefix=prefix, dir=parent.resolve())) for parent in parents
        )
        self._remover = remove_on_exit(self.directories)

    def close(self) -> None:
        """Remove them now."""
        self._remover.communicate()


def remove_on_exit(directories: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Who removes these directories when this process, or the pipe to it, ends."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE_AT_THE_END, "volley-scratch", *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Signals to the group of the worker are not for it.
        start_new_session=True,
    )
