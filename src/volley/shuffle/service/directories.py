# SPDX-License-Identifier: Apache-2.0
"""Locks the directories of a server, and makes the names of new files durable."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from volley.errors import ConfigError


def lock_directory(directory: Path) -> int:
    """Keep other servers out of a directory until the returned descriptor is closed or the process ends."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"{directory} is in use by another shuffle server.") from error
    return descriptor


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
