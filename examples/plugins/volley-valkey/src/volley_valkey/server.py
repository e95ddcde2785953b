# SPDX-License-Identifier: Apache-2.0
"""The calls to the server. All data of a query is one hash, so one call renews it and one removes it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from volley.errors import BlockMissing, ConfigError, LeaseExpired, ShuffleRefused
from volley.ids import QueryId
from volley.shuffle import RetryPolicy

# Both are atomic on the server. A hash that was released or has expired must not come back without its driver.
_PUT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""
_PUT_ONCE = _PUT.replace("HSET", "HSETNX")
_GONE = -1


class Server:
    """A client of the server at `url`. May be used from any thread."""

    def __init__(self, url: str, retry: RetryPolicy) -> None:
        if urlsplit(url).password:
            raise ConfigError("the URL of the Valkey server has a password.", hint="Set VALKEY_PASSWORD.")
        self.url = url
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                password=os.environ.get("VALKEY_PASSWORD"),
                socket_timeout=retry.stall_seconds,
                retry=Retry(ExponentialBackoff(base=retry.delay_seconds), retry.attempts),
            )
        except ValueError as error:
            raise ConfigError(f"{url} is not the URL of a Valkey server: {error}.") from error
        self._put = self._client.register_script(_PUT)
        self._put_once = self._client.register_script(_PUT_ONCE)

    def begin(self, query: QueryId, lease_seconds: float) -> None:
        with self._writing():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hset(_key(query), "begun", 1)
            pipeline.pexpire(_key(query), int(lease_seconds * 1000))
            pipeline.execute()

    def renew(self, query: QueryId, lease_seconds: float) -> None:
        """Raises LeaseExpired if it was not renewed for too long, or released by somebody else."""
        with self._writing():
            if not self._client.pexpire(_key(query), int(lease_seconds * 1000)):
                raise _expired(query)

    def check(self, query: QueryId) -> None:
        """Raises LeaseExpired unless the query has begun and is not over."""
        with self._writing():
            if not self._client.exists(_key(query)):
                raise _expired(query)

    def put(self, query: QueryId, field: str, value: bytes) -> None:
        """Raises LeaseExpired if the query is over, and ShuffleRefused if the server is full or does not answer."""
        with self._writing():
            if self._put(keys=[_key(query)], args=[field, value]) == _GONE:
                raise _expired(query)

    def put_once(self, query: QueryId, field: str, value: bytes) -> bool:
        """Like `put`, for a field that only the first writer gets. Returns whether that is this one."""
        with self._writing():
            written = self._put_once(keys=[_key(query)], args=[field, value])
            if written == _GONE:
                raise _expired(query)
            # If the reply to our own write was lost, the client has repeated it.
            return bool(written) or self._client.hget(_key(query), field) == value

    def get(self, query: QueryId, fields: Sequence[str]) -> list[bytes | None]:
        """Raises BlockMissing if the server does not answer."""
        try:
            values: list[bytes | None] = self._client.hmget(_key(query), list(fields))
            return values
        except redis.RedisError as error:
            raise BlockMissing(f"{self.url} does not answer: {error}.") from error

    def remove(self, query: QueryId, fields: Sequence[str]) -> None:
        with self._writing():
            if fields:
                self._client.hdel(_key(query), *fields)

    def release(self, query: QueryId) -> None:
        with self._writing():
            self._client.unlink(_key(query))

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            code = "SHUFFLE_FULL" if isinstance(error, redis.OutOfMemoryError) else "SHUFFLE_UNAVAILABLE"
            raise ShuffleRefused(code, f"{self.url}: {error}.") from error


def _key(query: QueryId) -> str:
    return f"volley:{query}"


def _expired(query: QueryId) -> LeaseExpired:
    return LeaseExpired(f"query {query} is not on the server: it is over, or its driver did not renew it.")
