# SPDX-License-Identifier: Apache-2.0
"""DataFusion's sessions: plans are made in some that this process keeps, and run in others that limit their memory.

A session remembers the footers and statistics of files that it has planned with, and plans take that along: reading
them again costs a short query most of its time. The files that operators spill end with the streams of the plan.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache

from datafusion import SessionConfig, SessionContext

from volley.lower.memory import OperatorMemory
from volley.runtime import Phase, Shared

_SETTINGS = {
    # Nanoseconds, the default, cannot hold the years that Spark writes.
    "datafusion.execution.parquet.coerce_int96": "us",
    # Sizes of tables choose the side of a join that is held in memory.
    "datafusion.execution.collect_statistics": "true",
    # Scans already give a stream a core. Dealing out one sorted stream to several would undo its order.
    "datafusion.optimizer.enable_round_robin_repartition": "false",
    # Spark has optimized the plan already: one pass finds what is left, and a short query is mostly planning.
    "datafusion.optimizer.max_passes": "1",
    # Twice the default: what an operator does once a batch costs half, and a batch still fits into the caches.
    "datafusion.execution.batch_size": "16384",
}
_SPLIT_SETTINGS = {
    # A partition that helped itself to the files of another would give rows twice: other processes run the others.
    "datafusion.execution.enable_file_stream_work_stealing": "false",
    "datafusion.optimizer.repartition_file_min_size": "0",
    # Each batch crosses two borders between languages on its way to the plan that reads it.
    "datafusion.execution.batch_size": "65536",
}
_HASHING_SETTINGS = {
    # Small inputs of a join would be collected instead of hashed.
    "datafusion.optimizer.hash_join_single_partition_threshold": "0",
    "datafusion.optimizer.hash_join_single_partition_threshold_rows": "0",
}

# Threads of DataFusion let go of Python's objects a moment after a query has ended, and crash the process if the
# interpreter is being taken down by then. Without this delay about 5 % of short programs crashed at exit.
_EXIT_DELAY_SECONDS = 0.05
_exit_delay: Shared[None, float] = Shared(Phase.ENGINE, close=time.sleep)


@lru_cache(maxsize=16)
def planning_context(target_partitions: int, memory: OperatorMemory | None = None) -> SessionContext:
    """The session in which all tasks of this process plan that are as wide and may hold as much.

    Nothing stays registered in it.
    """
    return SessionContext(_config(target_partitions, memory, {}))


@lru_cache(maxsize=16)
def hashing_context(target_partitions: int, memory: OperatorMemory | None = None) -> SessionContext:
    """The same for plans in which every join hashes both its sides."""
    return SessionContext(_config(target_partitions, memory, _HASHING_SETTINGS))


@lru_cache(maxsize=64)
def split_context(parts: int) -> SessionContext:
    """The session in which plans are run by splits: a plan over one file has `parts` partitions, as even as can be."""
    return SessionContext(_config(parts, None, _SPLIT_SETTINGS))


def running_context(target_partitions: int, memory: OperatorMemory | None = None) -> SessionContext:
    """A session in which tasks run what they have planned. Without `memory` they take what they need.

    All sessions of one `memory` share its pool.
    """
    if memory is None:
        return planning_context(target_partitions)
    return _limited_context(target_partitions, replace(memory, merge_joins=False))


@lru_cache(maxsize=64)
def _limited_context(target_partitions: int, memory: OperatorMemory) -> SessionContext:
    # The only way that DataFusion for Python has to make a second session with the same pool. That such a session
    # would read tables by their URLs is of no use to anybody here.
    context = _pool(memory).enable_url_table()
    for key, value in memory.settings(target_partitions).items():
        context.sql(f"SET {key} = {value}")
    return context


@lru_cache(maxsize=16)
def _pool(memory: OperatorMemory) -> SessionContext:
    return SessionContext(_config(1, None, {}), memory.runtime())


def _config(target_partitions: int, memory: OperatorMemory | None, settings: dict[str, str]) -> SessionConfig:
    _exit_delay.get(None, lambda: _EXIT_DELAY_SECONDS)
    config = SessionConfig().with_target_partitions(target_partitions)
    limits = memory.settings(target_partitions) if memory else {}
    for key, value in (_SETTINGS | settings | limits).items():
        config = config.set(key, value)
    return config
