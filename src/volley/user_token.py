# SPDX-License-Identifier: Apache-2.0
"""The token of this user, for daemons on this machine that were given none.

The first such daemon creates the file, which only this user may read. Other daemons, sessions and commands of the same
user find it there. It is presented only to daemons on this machine: elsewhere, somebody else might listen.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from volley.errors import ConfigError
from volley.process.machine import state_directory
from volley.security import TOKEN_VARIABLE, is_loopback

_HINT = "Give a token with --token-file or VOLLEY_TOKEN."


def ensure_user_token() -> Path:
    """The file with this user's token, which is created if there is none. ConfigError if that is not possible."""
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        _check_private(path)
    except OSError as error:
        raise ConfigError(f"no token could be kept in {path}: {error.strerror}.", hint=_HINT) from error
    return path


def token_file_for(
    daemons: Iterable[str], token_file: str, environment: Mapping[str, str] = os.environ
) -> str:
    """The token file for calls to `daemons` (host:port): the given one, or this user's own. Empty for none.

    The token of the environment comes before this user's own.
    """
    addresses = list(daemons)
    if token_file or environment.get(TOKEN_VARIABLE) or not addresses:
        return token_file
    path = _path()
    if not path.exists() or not all(is_loopback(_host(address)) for address in addresses):
        return ""
    _check_private(path)
    return str(path)


def _path() -> Path:
    return state_directory() / "token"


def _create(path: Path) -> None:
    """Create the file whole, or leave that of another process that was faster."""
    draft = path.with_name(f"token.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(32).encode())
    finally:
        os.close(descriptor)
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _check_private(path: Path) -> None:
    """Raise ConfigError unless this is a file of this user, in a directory where nobody else can replace it."""
    file, directory = path.lstat(), path.parent.stat()
    strange = not stat.S_ISREG(file.st_mode) or file.st_uid != os.geteuid()
    if strange or directory.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} is no file of this user alone.", hint=f"Remove it, or give a token. {_HINT}"
        )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
