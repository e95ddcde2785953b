# SPDX-License-Identifier: Apache-2.0
"""DataFusion sessions. The process keeps some for planning; plans run in others that limit their memory.

A session caches the footers and statistics of files that it has planned with: reading them again would take most of
the time of a short query. Spill files are removed with the streams of their plan.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache

from datafusion import SessionConfig, SessionContext

from volley.formats.parquet import drop_footers
from volley.formats.remote_parquet import drop_remote_footers
from volley.lower.memory import OperatorMemory
from volley.lower.plan_cache import drop_plans
from volley.process.runtime import Phase, Shared

_SETTINGS = {
    # Nanoseconds, the default, cannot represent all years that Spark writes.
    "datafusion.execution.parquet.coerce_int96": "us",
    # Table sizes determine the build side of a join.
    "datafusion.execution.collect_statistics": "true",
    # Scans already have one stream per core, and repartitioning a sorted stream would destroy its order.
    "datafusion.optimizer.enable_round_robin_repartition": "false",
    # Spark has already optimized the plan, so one pass is enough, and a short query is mostly planning.
    "datafusion.optimizer.max_passes": "1",
    # Spark has pruned the fields of structs already, and a union gets the same column twice when DataFusion moves the
    # fields that a sort reads below it.
    "datafusion.optimizer.enable_leaf_expression_pushdown": "false",
    # Twice the default: halves the cost per batch, and a batch still fits into the caches.
    "datafusion.execution.batch_size": "16384",
    # The default is 0.15. A join by integers then looks rows up in an array, of at most 200 bytes per row of its build
    # side, rather than in a hash table: keys are mostly sequence numbers, of which filters leave a part.
    "datafusion.execution.perfect_hash_join_min_key_density": "0.02",
}
_SPLIT_SETTINGS = {
    # Other processes run the other partitions: a partition that steals their files would return rows twice.
    "datafusion.execution.enable_file_stream_work_stealing": "false",
    "datafusion.optimizer.repartition_file_min_size": "0",
    # Each batch crosses two language boundaries on its way to the plan that reads it.
    "datafusion.execution.batch_size": "65536",
}
_HASHING_SETTINGS = {
    # Otherwise small join inputs would be collected instead of hashed.
    "datafusion.optimizer.hash_join_single_partition_threshold": "0",
    "datafusion.optimizer.hash_join_single_partition_threshold_rows": "0",
}

# DataFusion's threads release Python objects shortly after a query has ended, and crash the process if the interpreter
# is shutting down by then. Without this delay about 5 % of short programs crashed at exit.
_EXIT_DELAY_SECONDS = 0.05
_exit_delay: Shared[None, float] = Shared(Phase.ENGINE, close=time.sleep)


@lru_cache(maxsize=16)
def planning_context(
    target_partitions: int, memory: OperatorMemory | None = None, batch_rows: int | None = None
) -> SessionContext:
    """The session in which all tasks of this process with this width, memory and size of batches are planned.

    Nothing stays registered in it.
    """
    return SessionContext(_config(target_partitions, memory, _batch_settings(batch_rows)))


@lru_cache(maxsize=16)
def hashing_context(target_partitions: int, memory: OperatorMemory | None = None) -> SessionContext:
    """Like `planning_context`, for plans in which every join hashes both sides."""
    return SessionContext(_config(target_partitions, memory, _HASHING_SETTINGS))


@lru_cache(maxsize=64)
def split_context(parts: int) -> SessionContext:
    """The session in which plans run split by split: a plan over one file has `parts` partitions of equal size."""
    return SessionContext(_config(parts, None, _SPLIT_SETTINGS))


def drop_caches() -> None:
    """Forget plans, and the footers and statistics of files. What is in use stays until it is over."""
    drop_plans()
    drop_footers()
    drop_remote_footers()
    for cached in (planning_context, hashing_context, split_context):
        cached.cache_clear()


def running_context(
    target_partitions: int, memory: OperatorMemory | None = None, batch_rows: int | None = None
) -> SessionContext:
    """A session in which tasks run their plans. Without `memory` there is no limit.

    All sessions with the same `memory` share its pool.
    """
    if memory is None:
        return planning_context(target_partitions, None, batch_rows)
    return _limited_context(target_partitions, replace(memory, merge_joins=False), batch_rows)


@lru_cache(maxsize=64)
def _limited_context(
    target_partitions: int, memory: OperatorMemory, batch_rows: int | None
) -> SessionContext:
    # The only way in DataFusion's Python API to create a second session with the same pool. URL tables are not used.
    context = _pool(memory).enable_url_table()
    for key, value in (_batch_settings(batch_rows) | memory.settings(target_partitions)).items():
        context.sql(f"SET {key} = {value}")
    return context


@lru_cache(maxsize=16)
def _pool(memory: OperatorMemory) -> SessionContext:
    return SessionContext(_config(1, None, {}), memory.runtime())


def _batch_settings(rows: int | None) -> dict[str, str]:
    return {} if rows is None else {"datafusion.execution.batch_size": str(rows)}


def _config(target_partitions: int, memory: OperatorMemory | None, settings: dict[str, str]) -> SessionConfig:
    _exit_delay.get(None, lambda: _EXIT_DELAY_SECONDS)
    config = SessionConfig().with_target_partitions(target_partitions)
    limits = memory.settings(target_partitions) if memory else {}
    for key, value in (_SETTINGS | settings | limits).items():
        config = config.set(key, value)
    return config
