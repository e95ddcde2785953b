# SPDX-License-Identifier: Apache-2.0
"""DataFusion's sessions: plans are made in sessions that this process keeps, and run in one that is the task's own.

A session remembers the footers and statistics of files that it has planned with, and plans take that along: reading
them again costs a short query most of its time. The limit of memory and the files that operators spill belong to the
session in which a plan runs, and end with it.
"""

from __future__ import annotations

from functools import lru_cache

from datafusion import SessionConfig, SessionContext

from volley.lower.memory import OperatorMemory

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
    """A session in which one task runs what it has planned. Without `memory` it takes what it needs."""
    if memory is None:
        return planning_context(target_partitions)
    return SessionContext(_config(target_partitions, memory, {}), memory.runtime())


def _config(target_partitions: int, memory: OperatorMemory | None, settings: dict[str, str]) -> SessionConfig:
    config = SessionConfig().with_target_partitions(target_partitions)
    for key, value in (_SETTINGS | settings).items():
        config = config.set(key, value)
    return memory.configured(config, target_partitions) if memory else config
