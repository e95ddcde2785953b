# SPDX-License-Identifier: Apache-2.0
"""How exchanged data is kept and moved: the options `spark.volley.shuffle.*` as one value, passed whole."""

from __future__ import annotations

import random
from dataclasses import dataclass

from volley.config import Config

_LONGEST_DELAY_SECONDS = 30.0
# Read ahead per stream. Enough to keep a link busy while a batch is used, and a few streams cost little.
_FETCH_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try: `attempts` more times after a failure, waiting longer each time and never exactly as long as
    others do. A call ends after `stall_seconds`; one that gave nothing in that time has failed, any other goes on in
    the next call."""

    attempts: int
    delay_seconds: float
    stall_seconds: float

    def delay(self, failures: int) -> float:
        longest = min(_LONGEST_DELAY_SECONDS, self.delay_seconds * 2.0 ** (failures - 1))
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class ShuffleConfig:
    """`store` is memory (data stays with the workers), service, or the URI of a folder.

    `compression` is none, lz4, zstd or auto: how data is packed on disk and on its way to another host. Memory is never
    packed; auto packs with lz4. With `map_same_host` off, other processes of this host are asked as if they were on
    another.
    """

    store: str
    servers: tuple[str, ...]
    replicas: int
    memory_fraction: float
    spill_threshold: float
    max_message_bytes: int
    compression: str
    retry: RetryPolicy
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
        )

    @property
    def codec(self) -> str:
        """How to pack what is packed."""
        return "lz4" if self.compression == "auto" else self.compression
