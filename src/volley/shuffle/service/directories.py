# SPDX-License-Identifier: Apache-2.0
"""Opens the files in the directories of a server, locks them, and makes the names of new files durable."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from volley.errors import ConfigError


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file of this server for reading and writing, and create it if there is none.

    ConfigError if it is a link or belongs to another account: what somebody else has put there must not be read, and
    a file somewhere else must not be emptied.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a link.", hint="Remove it, or use another directory.") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise ConfigError(f"{path} belongs to another account.", hint="Remove it, or use another directory.")
    return descriptor


def lock_directory(directory: Path) -> int:
    """Keep other servers out of a directory until the returned descriptor is closed or the process ends."""
    descriptor = open_own(directory / "lock")
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
