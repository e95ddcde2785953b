# SPDX-License-Identifier: Apache-2.0
"""Which servers own a partition: rendezvous hashing.

Everybody who knows the same servers ranks them alike for a partition, and when one goes, only what it owned moves.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from volley.ids import StageId


def ranked(servers: Iterable[str], stage: StageId, partition: int) -> list[str]:
    """The servers, the first owner of the partition first. Attempts of all tasks of a stage agree."""
    key = f"{stage}/{partition}"
    return sorted(servers, key=lambda server: (-xxhash.xxh3_64_intdigest(f"{server}|{key}".encode()), server))
