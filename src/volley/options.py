# SPDX-License-Identifier: Apache-2.0
"""Every option of Volley: its name, type, default and meaning. docs/configuration.md is generated from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from volley.membership import parse_members
from volley.option_values import (
    at_least,
    boolean,
    bytes_or_auto,
    bytes_or_zero,
    choice,
    days,
    optional_port,
    parse_bytes,
    port,
    seconds,
    seconds_up_to,
    share,
    share_or_all,
)
from volley.plugins import parse_store, parse_transport

PREFIX = "spark.volley."
SHUFFLE_SERVERS = PREFIX + "shuffle.service"
CACHE_SIZE = PREFIX + "storage.cacheSize"
PLUGIN_PREFIX = PREFIX + "plugin."
"""Prefix of the options of plug-ins, which parse them themselves."""


@dataclass(frozen=True)
class Option:
    """One option. `parse` converts the text to a value, or raises a ValueError that says what is allowed."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], Any]

    @property
    def key(self) -> str:
        return PREFIX + self.name


# Sessions send these options to their workers, which apply them within the limits of their owner.
_OF_WORKERS = "With transport flight, set it with `volley worker --set`."
_FIXED = "If a worker is started with a value, sessions must have the same."
_LIMITED = "If a worker is started with a value, sessions may only lower it."

OPTIONS: tuple[Option, ...] = (
    Option(
        "enabled",
        "boolean",
        "true",
        "If false, this session runs entirely on Spark, even after volley.enable.",
        boolean,
    ),
    Option(
        "allowUntestedSpark",
        "boolean",
        "false",
        "Enable Volley on a release of Spark that is newer than those it is tested with.",
        boolean,
    ),
    Option(
        "fallback",
        "choice",
        "allow",
        "What to do if a part of a query does not run natively: allow, warn or error.",
        choice("allow", "warn", "error"),
    ),
    Option(
        "transport",
        "transport",
        "local",
        "Where tasks run: local (in this process), flight (worker daemons), spark (Spark's executors), the name of an"
        " installed plug-in, or package.module:factory.",
        parse_transport,
    ),
    Option(
        "workers",
        "addresses",
        "",
        "Transport flight: the worker daemons, as host:port, dns:name:port (all addresses of a name) or file:/path (a"
        " host:port a line), ... Names and files are looked up again while queries run.",
        parse_members,
    ),
    Option(
        "worker.timeoutSeconds",
        "number",
        "10",
        "Seconds without a reply before a worker daemon is considered lost; its tasks then run elsewhere. If all are"
        " lost, a query waits this long for one to return.",
        seconds,
    ),
    Option(
        "tokenFile",
        "file",
        "",
        "File with the token for daemons. Default: the environment variable VOLLEY_TOKEN; if all of them are on this"
        " machine, the token of this user that `volley worker` made.",
        str,
    ),
    Option(
        "tls.caFile",
        "file",
        "",
        "CA certificates (PEM) to trust. If set, connections to workers use TLS.",
        str,
    ),
    Option("tls.certificateFile", "file", "", "Client certificate (PEM), if workers require one.", str),
    Option("tls.keyFile", "file", "", "Private key (PEM) of the client certificate.", str),
    Option(
        "local.workers",
        "integer",
        "1",
        "Transport local: number of in-process workers. With 1 a query runs as one plan without exchanges.",
        at_least(1),
    ),
    Option(
        "local.cores",
        "integer",
        "0",
        "Transport local: cores that the workers share. 0: all cores of this process.",
        at_least(0),
    ),
    Option(
        "memory",
        "size",
        "0",
        "Transport local: memory of native queries in this process, beside what the program itself holds. What does "
        "not fit is spilled to the temporary directory. 0: half of the memory of this machine or container. Rows that "
        "Spark's tasks send or fetch may take shuffle.memoryFraction of it in addition.",
        bytes_or_zero,
    ),
    Option(
        "shuffle.store",
        "store",
        "memory",
        "Where exchanged data is kept: memory (of the workers that wrote it, or their disks); or, to survive workers,"
        " service (shuffle servers), the URI of a folder that all workers can reach (file://, s3://, ...), the name of"
        " an installed plug-in, alone or as the scheme of a URI, or package.module:factory. " + _FIXED,
        parse_store,
    ),
    Option(
        "shuffle.service",
        "addresses",
        "",
        "Store service: the shuffle servers, as host:port, dns:name:port or file:/path, ... Names and files are looked"
        " up for each query. " + _FIXED,
        parse_members,
    ),
    Option(
        "shuffle.replicas",
        "integer",
        "2",
        "Store service: replicas per block, capped at the number of servers. " + _FIXED,
        at_least(1),
    ),
    Option(
        "shuffle.checkpoint",
        "text",
        "",
        "A name under which finished stages are kept after their query, for a later run of the same program to take "
        "over: see docs/recovery.md. Needs the store service or a folder. Anyone who has the token and knows the name "
        "can read them. Empty: nothing is kept.",
        str,
    ),
    Option(
        "shuffle.checkpointSeconds",
        "number",
        "86400",
        "Seconds after its last use for which a stage stays in the checkpoint; at most 30 days.",
        seconds_up_to(30 * 86400),
    ),
    Option(
        "pythonFunctions",
        "boolean",
        "true",
        "Call Python functions (UDFs, mapInPandas, applyInPandas, ...) in Volley's own Python workers. If false, Spark "
        "calls them.",
        boolean,
    ),
    Option(
        "pythonFunctions.maxFiles",
        "size",
        "256m",
        "Send broadcast variables and added files of at most this size to workers in other processes, once per worker. "
        "Spark calls functions that may need more.",
        bytes_or_zero,
    ),
    Option(
        "mixed",
        "boolean",
        "true",
        "Run the supported parts of a query natively if Spark must run the rest. If false, Spark runs all of it.",
        boolean,
    ),
    Option(
        "jvmExpressions",
        "choice",
        "auto",
        "Expressions without a native form: auto (Spark's own code evaluates them, in the driver's JVM or in one "
        "beside each worker) or off (Spark runs their operators).",
        choice("auto", "off"),
    ),
    Option(
        "cache.memory",
        "size",
        "auto",
        "Memory for the rows of cached frames: of the driver, or of all workers if they are other processes. auto: a "
        "quarter of the driver's machine or container, or what the stores of the workers have. Beyond it they go to "
        "disk or are dropped, by their storage level. 0: Spark alone keeps cached frames.",
        bytes_or_auto,
    ),
    Option(
        "storage.cacheSize",
        "size",
        "1g",
        "Local disk of each process that reads object stores, for the parts of Parquet files that queries read "
        "again. 0: none.",
        bytes_or_zero,
    ),
    Option(
        "singleTaskSize",
        "size",
        "32m",
        "A query that reads at most this much from files (the columns it needs, plus 256k per file) runs as one task. "
        "0: never.",
        bytes_or_zero,
    ),
    Option(
        "planner.scanTaskSize",
        "size",
        "2m",
        "Bytes per task of a file scan. A scan has at most one task per worker.",
        parse_bytes,
    ),
    Option(
        "planner.shuffleTaskSize",
        "size",
        "12m",
        "Shuffle partitions are merged until a task reads at least this much.",
        parse_bytes,
    ),
    Option(
        "planner.replicatedScanSize",
        "size",
        "3m",
        "A broadcast side that scans at most this much is computed by every task instead of by its own stage. "
        "0: never.",
        bytes_or_zero,
    ),
    Option(
        "planner.continuedStageSize",
        "size",
        "12m",
        "A single task continues with the next stage if it reads at most this much for it. 0: never.",
        bytes_or_zero,
    ),
    Option(
        "planner.broadcastSize",
        "size",
        "10m",
        "A shuffle join becomes a broadcast join if one side turns out to be at most this large. 0: never.",
        bytes_or_zero,
    ),
    Option(
        "planner.runtimeFilterSize",
        "size",
        "64m",
        "Largest join side that a task reads as a runtime filter, to drop rows before they are exchanged. 0: never.",
        bytes_or_zero,
    ),
    Option(
        "executor.memory",
        "size",
        "0",
        "Transport spark: memory of an executor's sidecar. 0: the executor's overhead memory.",
        bytes_or_zero,
    ),
    Option(
        "executor.insecure",
        "boolean",
        "false",
        "Transport spark: allow sidecars and the driver to listen beyond loopback without TLS. They always require a "
        "token.",
        boolean,
    ),
    Option(
        "shuffle.port",
        "integer",
        "0",
        "Port of a worker's Flight endpoint. 0: any free port. " + _OF_WORKERS,
        port,
    ),
    Option(
        "shuffle.memoryFraction",
        "number",
        "0.3",
        "Fraction of a worker's memory for exchanged data. " + _OF_WORKERS,
        share,
    ),
    Option(
        "shuffle.spillThreshold",
        "number",
        "0.8",
        "Fraction of the memory for exchanged data above which new output goes to disk. " + _LIMITED,
        share_or_all,
    ),
    Option(
        "shuffle.maxMessageSize",
        "size",
        "64m",
        "Maximum size of a Flight message with exchanged data or results. " + _LIMITED,
        parse_bytes,
    ),
    Option(
        "shuffle.compression",
        "choice",
        "auto",
        "Compression of exchanged data on disk and between hosts: none, lz4, zstd, or auto (lz4).",
        choice("none", "lz4", "zstd", "auto"),
    ),
    Option(
        "shuffle.retryAttempts",
        "integer",
        "3",
        "Retries of a failed fetch.",
        at_least(0),
    ),
    Option(
        "shuffle.retryDelayMs",
        "integer",
        "1000",
        "Delay before the first retry. It doubles each time, with jitter and a cap.",
        at_least(0),
    ),
    Option(
        "shuffle.timeoutSeconds",
        "number",
        "20",
        "Seconds without data before a fetch fails.",
        seconds,
    ),
    Option("task.attempts", "integer", "3", "Attempts at a task before the query fails.", at_least(1)),
    Option(
        "timeoutSeconds",
        "number",
        "3600",
        "A native query that takes longer fails with DEADLINE_EXCEEDED.",
        seconds,
    ),
    Option(
        "progress",
        "choice",
        "auto",
        "Show the progress of long queries: auto (on a terminal and in a notebook), on or off.",
        choice("auto", "on", "off"),
    ),
    Option(
        "ui",
        "choice",
        "auto",
        "List native queries in the SQL tab of Spark's UI and in its event log: auto (where Spark has one), on or off.",
        choice("auto", "on", "off"),
    ),
    Option(
        "explain.spark",
        "boolean",
        "false",
        "Let DataFrame.explain() say at its end whether Volley would run the query.",
        boolean,
    ),
    Option(
        "tracing",
        "boolean",
        "false",
        "Make OpenTelemetry spans of queries, stages and tasks. Needs the extra tracing.",
        boolean,
    ),
    Option(
        "metrics.port",
        "integer",
        "",
        "Port at which this driver serves Prometheus metrics of its queries. 0: any. Default: none.",
        optional_port,
    ),
    Option(
        "metrics.host",
        "host",
        "127.0.0.1",
        "Address at which it does so.",
        str,
    ),
    Option(
        "history.dir",
        "directory",
        "",
        "Folder of the history of queries. Default: $XDG_STATE_HOME/volley or ~/.local/state/volley. off: no history.",
        str,
    ),
    Option(
        "history.maxSize",
        "size",
        "128m",
        "Size of the history. Beyond it the oldest queries are deleted.",
        parse_bytes,
    ),
    Option(
        "history.maxAgeDays",
        "number",
        "30",
        "Age of queries in the history, in days. Older ones are deleted.",
        days,
    ),
)
