# SPDX-License-Identifier: Apache-2.0
"""The memory of queries that run in the driver's own process (`spark.volley.memory`). All of them share it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from volley.config import Config
from volley.lower.memory import OperatorMemory
from volley.process.allocator import resident_bytes
from volley.process.machine import query_memory_bytes
from volley.process.runtime import Phase, Shared
from volley.shuffle.budget import MemoryBudget
from volley.worker.memory_guard import MemoryGuard
from volley.worker.scratch import Scratch

# One worker exchanges rows only for subqueries, and where a query is divided because it does not fit: then on disk.
_SINGLE_WORKER_FRACTION = 0.05
# The rest is for what no pool counts: decoded pages, batches between operators, buffered results.
_POOLED_FRACTION = 0.75


@dataclass(frozen=True)
class EmbeddedMemory:
    """What `operators` and `exchanges` do not admit goes to `directories`."""

    operators: OperatorMemory
    exchanges: MemoryBudget
    directories: tuple[Path, ...]

    @classmethod
    def of(cls, config: Config) -> EmbeddedMemory:
        total_bytes = query_memory_bytes(config.memory)
        _guards.get(total_bytes, lambda: _guard_growth(total_bytes)).check()
        fraction = config.shuffle_memory_fraction if config.local_workers > 1 else _SINGLE_WORKER_FRACTION
        exchanges_bytes = int(total_bytes * _POOLED_FRACTION * fraction)
        operators_bytes = int(total_bytes * _POOLED_FRACTION) - exchanges_bytes
        directories = _scratch.get(None, _make_scratch).directories
        return cls(
            OperatorMemory(operators_bytes, directories, tasks=config.local_workers),
            _exchanges.get(exchanges_bytes, lambda: MemoryBudget(exchanges_bytes)),
            directories,
        )


def _guard_growth(limit_bytes: int) -> MemoryGuard:
    """Returns freed memory between queries. What the program held before its first query is not counted."""
    before_bytes = resident_bytes()
    return MemoryGuard(limit_bytes, lambda: resident_bytes() - before_bytes, drop=lambda: None)


def _make_scratch() -> Scratch:
    return Scratch((Path(tempfile.gettempdir()),), prefix="volley-spill-")


_scratch: Shared[None, Scratch] = Shared(Phase.FILES, close=Scratch.close)
_guards: Shared[int, MemoryGuard] = Shared(Phase.STORES, close=MemoryGuard.close)
_exchanges: Shared[int, MemoryBudget] = Shared(Phase.STORES, close=lambda _: None)
