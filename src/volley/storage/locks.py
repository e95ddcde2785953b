# SPDX-License-Identifier: Apache-2.0
"""A mutual-exclusion lock for writers to a bucket: an object that changes only by conditional puts.

    acquire    created if there is none; one that was not renewed for long is replaced if it is still the one that
               was read
    renew      replaced if it is still the one that this owner has put
    release    deleted on the same condition

Each put has a unique text and therefore a unique ETag: of two writers that found the same stale lock, one wins.
"""

from __future__ import annotations

import secrets
import threading
import time

from volley.errors import QueryError
from volley.storage.uploads import Uploads

_STEP_SECONDS = 0.5
_TRIES = 5


class NoLock:
    """A no-op lock, for writes that need none."""

    def keep(self) -> None:
        pass

    def renew(self) -> None:
        pass


class ObjectLock:
    """The lock at `key` of a bucket, for one owner. All methods raise QueryError.

    A lock that was not renewed for `stale_seconds`, by the store's clock, was left by a killed process and may be taken
    over. `keep` is thread-safe.
    """

    def __init__(self, uploads: Uploads, key: str, owner: str, stale_seconds: float) -> None:
        self._uploads = uploads
        self._key = key
        self._owner = owner
        self._stale_seconds = stale_seconds
        self._turn = threading.Lock()
        self._etag: str | None = None
        self._renewed = 0.0

    def acquire(self, wait_seconds: float) -> None:
        """Acquire the lock, waiting up to this long for its owner."""
        deadline = time.monotonic() + wait_seconds
        expected: str | None = None
        while not self._put(expected):
            found = self._uploads.find_text(self._key)
            expected = None
            if found is not None and found.age_seconds > self._stale_seconds:
                expected = found.etag
            elif found is not None and time.monotonic() > deadline:
                raise QueryError(
                    f"another write has held the lock {self._uploads.url(self._key)} for {found.age_seconds:.0f} s.",
                    hint="Delete that object if no such write is running.",
                )
            else:
                time.sleep(_STEP_SECONDS)

    def keep(self) -> None:
        """Renew the lock in time: when a quarter of what makes it stale has passed."""
        with self._turn:
            if time.monotonic() - self._renewed > self._stale_seconds / 4:
                self._renew()

    def renew(self) -> None:
        """Hold the lock for another `stale_seconds`. Raises if it is not this owner's any more."""
        with self._turn:
            self._renew()

    def release(self) -> None:
        """Release the lock. One that another owner has taken over stays."""
        self.renew()
        self._uploads.delete(self._key, self._etag)

    def _renew(self) -> None:
        if not self._put(self._etag):
            raise QueryError(
                f"another write took over the lock {self._uploads.url(self._key)}, or somebody deleted it.",
                hint="Write again.",
            )

    def _put(self, expected: str | None) -> bool:
        """Put the object if its ETag is as expected; None: if it does not exist."""
        text = f"{self._owner} {secrets.token_hex(8)}"
        for _ in range(_TRIES):
            etag = self._uploads.put_if(self._key, text, expected)
            if etag is None:
                found = self._uploads.find_text(self._key)
                if found is not None and found.text == text:
                    etag = found.etag  # the answer to our request was lost
                elif (found and found.etag) != expected:
                    return False
            if etag is not None:
                self._etag, self._renewed = etag, time.monotonic()
                return True
        return False
