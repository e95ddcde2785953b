# SPDX-License-Identifier: Apache-2.0
"""The directories of a server: its own, and their names as safe on disk as what is in them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from volley.errors import ConfigError


def lock_directory(directory: Path) -> int:
    """Nobody else may keep chunks there; the lock goes with the descriptor, or the process."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"{directory} is in use by another shuffle server.") from error
    return descriptor


def sync_directory(directory: Path) -> None:
    """Names in it survive, too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
