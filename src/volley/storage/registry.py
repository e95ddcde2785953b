# SPDX-License-Identifier: Apache-2.0
"""The stores that this process may read, by id: those of its own sessions, and those that came with a task.

Credentials may expire while a query runs. The driver asks for them again now and then, and each task that it sends
brings those of its time. An id stays the same, and newer credentials replace older ones.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow.fs as fs

from volley.errors import DataError
from volley.process.runtime import Phase, Shared
from volley.storage.settings import AzureSettings, GcsSettings, S3Settings, StoreSettings

_log = logging.getLogger(__name__)
_MOST_STORES = 256
# Providers of temporary credentials replace them minutes before they expire.
_RENEW_SECONDS = 60.0
_GCS_RETRIES = timedelta(seconds=30)
# Of a shared access signature in a URL, where the client has put the parameters of the token into another order.
_SIGNATURE = re.compile(r"\b(sig(?:=|%3D))[^&\s'\"]+", re.IGNORECASE)

Ask = Callable[[], StoreSettings | None]
"""Asks for the settings of a store as they are now; None if there is no answer."""


@dataclass
class _Store:
    """`settings` are None for a store that only this process can read."""

    settings: StoreSettings | None
    files: fs.FileSystem | None = None
    ask: Ask | None = None
    asked: float = 0.0


class Stores:
    """Settings of stores, and clients made of them. Those that were not used for longest are dropped. Thread-safe.

    Arrow creates a client only while no other has a request in flight. Busy scans would starve that, so no thread gets
    a client to open another object while one is being created.
    """

    def __init__(self, most: int = _MOST_STORES, renew_seconds: float = _RENEW_SECONDS) -> None:
        self._most = most
        self._renew_seconds = renew_seconds
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._stores: OrderedDict[str, _Store] = OrderedDict()

    def add(self, settings: Iterable[StoreSettings], ask: Ask | None = None) -> None:
        """Add settings, unless their credentials are older than the known ones.

        `ask` renews those of this process itself.
        """
        with self._lock:
            for store in settings:
                found = self._stores.get(store.id)
                if found is None or (found.settings and store.renewals > found.settings.renewals):
                    found = self._stores[store.id] = _Store(store, ask=found.ask if found else None)
                if ask is not None:
                    found.ask, found.asked = ask, time.monotonic()
                self._stores.move_to_end(store.id)
            while len(self._stores) > self._most:
                self._stores.popitem(last=False)

    def add_local(self, key: Hashable, files: fs.FileSystem) -> str:
        """The id of a store that only this process can read, by the given client; the same for the same key."""
        id = f"local-{hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()}"
        with self._lock:
            if id not in self._stores:
                self._stores[id] = _Store(None, files)
            self._stores.move_to_end(id)
        return id

    def settings(self, ids: Iterable[str]) -> tuple[StoreSettings, ...]:
        """The settings that another process needs to read these stores."""
        with self._lock:
            held = [self._stores[id].settings for id in ids if id in self._stores]
        return tuple(settings for settings in held if settings is not None)

    def cache_bytes(self, id: str) -> int:
        """How much of what is read from a store may be kept; 0 if only this process can read it."""
        with self._lock:
            found = self._stores.get(id)
            return found.settings.cache_bytes if found is not None and found.settings is not None else 0

    def renewed_settings(self, ids: Iterable[str]) -> tuple[StoreSettings, ...]:
        """The same with credentials at most a minute old, if this process can renew them. May block."""
        wanted = tuple(ids)
        now = time.monotonic()
        with self._lock:
            stores = [self._stores[id] for id in wanted if id in self._stores]
            due = [store for store in stores if store.ask and now - store.asked >= self._renew_seconds]
            for store in due:
                store.asked = now
        for store in due:
            assert store.ask is not None
            assert store.settings is not None
            old, found = store.settings, store.ask()
            if found is None:
                _log.warning("the credentials of an object store could not be asked for again.")
            elif replace(found, id=old.id, renewals=old.renewals) != old:
                self.add((replace(found, id=old.id, renewals=old.renewals + 1),), store.ask)
        return self.settings(wanted)

    def file_system(self, id: str) -> fs.FileSystem:
        """The client of a store. Raises DataError if this process does not have its settings."""
        with self._lock:
            store = self._stores.get(id)
            if store is None:
                raise DataError("the settings of an object store are not known here any more.")
            self._stores.move_to_end(id)
        with self._connecting:
            if store.files is None:
                assert store.settings is not None
                store.files = _connect(store.settings)
            return store.files

    def redact(self, id: str, text: str) -> str:
        """The text without the secrets of a store."""
        return _redact(self.settings((id,)), text)

    def redact_all(self, text: str) -> str:
        """The text without the secrets of any store."""
        with self._lock:
            held = [store.settings for store in self._stores.values() if store.settings is not None]
        return _redact(held, text)

    def close(self) -> None:
        with self._lock:
            self._stores.clear()


def _redact(stores: Iterable[StoreSettings], text: str) -> str:
    hidden = {key.value for store in stores for key in store.hidden if key is not None}
    # One may be the beginning of another.
    for value in sorted(hidden, key=len, reverse=True):
        text = text.replace(value, "***")
    return _SIGNATURE.sub(r"\1***", text)


def _connect(settings: StoreSettings) -> fs.FileSystem:
    match settings:
        case S3Settings():
            return _connect_s3(settings)
        case GcsSettings():
            return _connect_gcs(settings)
        case AzureSettings():
            return _connect_azure(settings)


def _connect_gcs(settings: GcsSettings) -> fs.FileSystem:
    token = settings.access_token
    return fs.GcsFileSystem(
        anonymous=token is None,
        access_token=token.value if token else None,
        credential_token_expiration=datetime.fromtimestamp(settings.expires_seconds, timezone.utc)
        if token
        else None,
        scheme="https" if settings.tls else "http",
        endpoint_override=settings.endpoint or None,
        retry_time_limit=_GCS_RETRIES,
    )


def _connect_azure(settings: AzureSettings) -> fs.FileSystem:
    key, token, secret = (text.value if text else None for text in settings.hidden)
    # Arrow appends the token to the URL of the account as it is.
    query = f"?{token}" if token else None
    given: dict[str, str | None] = {"account_key": key, "sas_token": query, "client_secret": secret}
    given |= {"tenant_id": settings.tenant_id, "client_id": settings.client_id}
    if settings.endpoint:
        given |= {"blob_storage_authority": settings.endpoint, "dfs_storage_authority": settings.endpoint}
    scheme = "https" if settings.tls else "http"
    return fs.AzureFileSystem(
        settings.account,
        blob_storage_scheme=scheme,
        dfs_storage_scheme=scheme,
        **{name: value for name, value in given.items() if value},
    )


def _connect_s3(settings: S3Settings) -> fs.FileSystem:
    keys = (settings.access_key, settings.secret_key, settings.session_token)
    access_key, secret_key, session_token = (key.value if key else None for key in keys)
    return fs.S3FileSystem(
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        anonymous=access_key is None,
        region=settings.region,
        scheme="https" if settings.tls else "http",
        endpoint_override=settings.endpoint or None,
        force_virtual_addressing=bool(settings.endpoint) and settings.virtual_hosted,
        connect_timeout=settings.connect_seconds,
        request_timeout=settings.silence_seconds,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=settings.attempts),
    )


_shared: Shared[None, Stores] = Shared(Phase.CONNECTIONS, close=Stores.close)


def shared_stores() -> Stores:
    """The stores of this process. A forked child has none."""
    return _shared.get(None, Stores)
