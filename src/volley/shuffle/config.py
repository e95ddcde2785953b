# SPDX-License-Identifier: Apache-2.0
"""The options `spark.volley.shuffle.*` as one value."""

from __future__ import annotations

import random
from dataclasses import dataclass

from volley.config import Config

_LONGEST_DELAY_SECONDS = 30.0
# Prefetched bytes per stream: enough to keep a link busy, and cheap for a few streams.
_FETCH_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RetryPolicy:
    """Retries with exponential backoff and jitter: up to `attempts` after the first failure.

    A call ends after `stall_seconds`. It has failed if it brought nothing in that time; otherwise the next call
    continues where it ended.
    """

    attempts: int
    delay_seconds: float
    stall_seconds: float

    def delay(self, failures: int) -> float:
        longest = min(_LONGEST_DELAY_SECONDS, self.delay_seconds * 2.0 ** (failures - 1))
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class ShuffleConfig:
    """`store` is memory (data stays with the workers), service, the URI of a folder, or names a plug-in, whose options
    are in `plugin`.

    `compression` (none, lz4, zstd, or auto for lz4) applies to data on disk and between hosts, never to data in memory.
    Without `map_same_host`, blocks of other processes on this host are fetched over Flight as if they were remote.
    """

    store: str
    servers: tuple[str, ...]
    replicas: int
    memory_fraction: float
    spill_threshold: float
    max_message_bytes: int
    compression: str
    retry: RetryPolicy
    plugin: tuple[tuple[str, str], ...] = ()
    fetch_budget_bytes: int = _FETCH_BYTES
    map_same_host: bool = True

    @classmethod
    def of(cls, config: Config) -> ShuffleConfig:
        return cls(
            store=config.shuffle_store,
            servers=config.shuffle_service,
            replicas=config.shuffle_replicas,
            memory_fraction=config.shuffle_memory_fraction,
            spill_threshold=config.shuffle_spill_threshold,
            max_message_bytes=config.shuffle_max_message_size,
            compression=config.shuffle_compression,
            retry=RetryPolicy(
                config.shuffle_retry_attempts,
                config.shuffle_retry_delay_ms / 1000,
                config.shuffle_timeout_seconds,
            ),
            plugin=config.plugin,
        )

    @property
    def codec(self) -> str:
        """The codec for data that is compressed."""
        return "lz4" if self.compression == "auto" else self.compression
