# SPDX-License-Identifier: Apache-2.0
"""Assigns partitions to servers by rendezvous hashing.

Processes that know the same servers rank them in the same order. When a server goes, only its own partitions move.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from volley.ids import StageId


def rank_servers(servers: Iterable[str], stage: StageId, partition: int) -> list[str]:
    """Rank the servers for a partition, preferred owner first. All tasks and attempts of a stage agree."""
    key = f"{stage}/{partition}"
    return sorted(servers, key=lambda server: (-xxhash.xxh3_64_intdigest(f"{server}|{key}".encode()), server))
