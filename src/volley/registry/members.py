# SPDX-License-Identifier: Apache-2.0
"""The daemons of one role that are registered, and the file that lists them.

    join(address)    listed until its lease expires; each join renews it
    leave(address)   not listed any more
    expire()         those whose lease has expired are not listed any more

The file has a `host:port` a line and is replaced as a whole, so that a reader never sees half of it. A registry that
starts again continues with the file: daemons that it lists have one lease to register again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from volley.errors import ConfigError, QueryError
from volley.membership import read_member_file

MOST_MEMBERS = 10_000
_FIRST_LEASE_SECONDS = 30.0


class Members:
    """Methods may be called from any thread."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError if the file cannot be written."""
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        try:
            listed = read_member_file(file) if file.exists() else ()
            self._until = {address: clock() + _FIRST_LEASE_SECONDS for address in listed}
            self._write()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be used as a list of members: {error}.") from error

    @property
    def addresses(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._until))

    def join(self, address: str, lease_seconds: float) -> None:
        """List a daemon. QueryError if there are too many."""
        with self._lock:
            if address not in self._until and len(self._until) >= MOST_MEMBERS:
                raise QueryError(f"there are {MOST_MEMBERS} members already.")
            is_new = address not in self._until
            self._until[address] = self._clock() + lease_seconds
            if is_new:
                self._write()

    def leave(self, address: str) -> None:
        with self._lock:
            if self._until.pop(address, None) is not None:
                self._write()

    def expire(self) -> tuple[str, ...]:
        """Drop members whose lease has expired, and return them."""
        with self._lock:
            now = self._clock()
            gone = tuple(address for address, until in self._until.items() if until < now)
            for address in gone:
                del self._until[address]
            if gone:
                self._write()
            return gone

    def _write(self) -> None:
        new = self._file.with_name(f"{self._file.name}.{os.getpid()}.new")
        try:
            new.write_text("".join(f"{address}\n" for address in sorted(self._until)), encoding="utf-8")
            new.replace(self._file)
        finally:
            new.unlink(missing_ok=True)
