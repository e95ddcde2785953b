# SPDX-License-Identifier: Apache-2.0
"""Every option of Volley: its name, type, default and meaning. docs/configuration.md is generated from here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from volley.errors import ConfigError
from volley.membership import parse_members
from volley.plugins import parse_store, parse_transport

PREFIX = "spark.volley."
SHUFFLE_SERVERS = PREFIX + "shuffle.service"
PLUGIN_PREFIX = PREFIX + "plugin."
"""Options below it belong to plug-ins, which read them themselves."""


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


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text.lower()

    return parse


Number = TypeVar("Number", int, float)


def _number(
    kind: Callable[[str], Number], accepts: Callable[[Number], bool], expected: str
) -> Callable[[str], Number]:
    """A number that `accepts` holds for. The message is the same whether it is none or not in range."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if not accepts(value):
            raise ValueError(f"expected {expected}")
        return value

    return parse


def _at_least(minimum: int) -> Callable[[str], int]:
    return _number(int, lambda value: value >= minimum, f"a whole number of at least {minimum}")


_seconds = _number(float, lambda value: 0 < value < math.inf, "a number of seconds above 0")
_days = _number(float, lambda value: 0 < value < math.inf, "a number of days above 0")
_share = _number(float, lambda value: 0 < value < 1, "a number between 0 and 1")
_share_or_all = _number(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")
_port = _number(int, lambda value: 0 <= value < 65536, "a port, or 0 for any")


def _optional_port(text: str) -> int | None:
    return _port(text) if text else None


def parse_bytes(text: str) -> int:
    """Parse a size such as 64m or 1.5g. As in Spark, k, m, g and t are powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None or (size := int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))) < 1:
        raise ValueError("expected a size such as 64m or 2g")
    return size


def _bytes_or_zero(text: str) -> int:
    return 0 if text == "0" else parse_bytes(text)


def _bytes_or_auto(text: str) -> int | None:
    return None if text.lower() == "auto" else _bytes_or_zero(text)


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
        _boolean,
    ),
    Option(
        "allowUntestedSpark",
        "boolean",
        "false",
        "Enable Volley on a release of Spark that is newer than those it is tested with.",
        _boolean,
    ),
    Option(
        "fallback",
        "choice",
        "allow",
        "What to do if a part of a query does not run natively: allow, warn or error.",
        _choice("allow", "warn", "error"),
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
        "Seconds without a reply before a worker daemon is considered lost; its tasks then run elsewhere. When all are"
        " lost, a query waits as long for one to come back.",
        _seconds,
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
        _at_least(1),
    ),
    Option(
        "local.cores",
        "integer",
        "0",
        "Transport local: cores that the workers share. 0: all cores of this process.",
        _at_least(0),
    ),
    Option(
        "memory",
        "size",
        "0",
        "Transport local: memory of native queries in this process, beside what the program itself holds. What does "
        "not fit is spilled to the temporary directory. 0: half of the memory of this machine or container.",
        _bytes_or_zero,
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
        _at_least(1),
    ),
    Option(
        "pythonFunctions",
        "boolean",
        "true",
        "Call Python functions (UDFs, mapInPandas, applyInPandas, ...) in Volley's own Python workers. If false, Spark "
        "calls them.",
        _boolean,
    ),
    Option(
        "mixed",
        "boolean",
        "true",
        "Run the supported parts of a query natively if Spark must run the rest. If false, Spark runs all of it.",
        _boolean,
    ),
    Option(
        "jvmExpressions",
        "choice",
        "auto",
        "Expressions without a native form: auto (Spark's own code evaluates them in the driver's JVM, with transport "
        "local) or off (Spark runs their operators).",
        _choice("auto", "off"),
    ),
    Option(
        "cache.memory",
        "size",
        "auto",
        "Memory of the driver for the rows of cached frames. auto: a quarter of the machine or container. "
        "Beyond it they go to disk, if their storage level allows it. 0: Spark alone keeps cached frames.",
        _bytes_or_auto,
    ),
    Option(
        "singleTaskSize",
        "size",
        "32m",
        "A query that reads at most this much from files (the columns it needs, plus 256k per file) runs as one task. "
        "0: never.",
        _bytes_or_zero,
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
        _bytes_or_zero,
    ),
    Option(
        "planner.continuedStageSize",
        "size",
        "12m",
        "A single task continues with the next stage if it reads at most this much for it. 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.broadcastSize",
        "size",
        "10m",
        "A shuffle join becomes a broadcast join if one side turns out to be at most this large. 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.runtimeFilterSize",
        "size",
        "64m",
        "Largest join side that a task reads as a runtime filter, to drop rows before they are exchanged. 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "executor.memory",
        "size",
        "0",
        "Transport spark: memory of an executor's sidecar. 0: the executor's overhead memory.",
        _bytes_or_zero,
    ),
    Option(
        "executor.insecure",
        "boolean",
        "false",
        "Transport spark: allow sidecars and the driver to listen beyond loopback without TLS. They always require a "
        "token.",
        _boolean,
    ),
    Option(
        "shuffle.port",
        "integer",
        "0",
        "Port of a worker's Flight endpoint. 0: any free port. " + _OF_WORKERS,
        _port,
    ),
    Option(
        "shuffle.memoryFraction",
        "number",
        "0.3",
        "Fraction of a worker's memory for exchanged data. " + _OF_WORKERS,
        _share,
    ),
    Option(
        "shuffle.spillThreshold",
        "number",
        "0.8",
        "Fraction of the memory for exchanged data above which new output goes to disk. " + _LIMITED,
        _share_or_all,
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
        _choice("none", "lz4", "zstd", "auto"),
    ),
    Option(
        "shuffle.retryAttempts",
        "integer",
        "3",
        "Retries of a failed fetch.",
        _at_least(0),
    ),
    Option(
        "shuffle.retryDelayMs",
        "integer",
        "1000",
        "Delay before the first retry. It doubles each time, with jitter and a cap.",
        _at_least(0),
    ),
    Option(
        "shuffle.timeoutSeconds",
        "number",
        "20",
        "Seconds without data before a fetch fails.",
        _seconds,
    ),
    Option("task.attempts", "integer", "3", "Attempts at a task before the query fails.", _at_least(1)),
    Option(
        "timeoutSeconds",
        "number",
        "3600",
        "A native query that takes longer fails with DEADLINE_EXCEEDED.",
        _seconds,
    ),
    Option(
        "progress",
        "choice",
        "auto",
        "Show the progress of long queries: auto (on a terminal and in a notebook), on or off.",
        _choice("auto", "on", "off"),
    ),
    Option(
        "ui",
        "choice",
        "auto",
        "List native queries in the SQL tab of Spark's UI and in its event log: auto (where Spark has one), on or off.",
        _choice("auto", "on", "off"),
    ),
    Option(
        "explain.spark",
        "boolean",
        "false",
        "Let DataFrame.explain() say at its end whether Volley would run the query.",
        _boolean,
    ),
    Option(
        "tracing",
        "boolean",
        "false",
        "Make OpenTelemetry spans of queries, stages and tasks. Needs the extra tracing.",
        _boolean,
    ),
    Option(
        "metrics.port",
        "integer",
        "",
        "Port at which this driver serves Prometheus metrics of its queries. 0: any. Default: none.",
        _optional_port,
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
        _days,
    ),
)


@dataclass(frozen=True)
class Config:
    """The options of one query, read once when it starts."""

    enabled: bool
    allow_untested_spark: bool
    fallback: str
    transport: str
    workers: tuple[str, ...]
    worker_timeout_seconds: float
    token_file: str
    tls_ca_file: str
    tls_certificate_file: str
    tls_key_file: str
    local_workers: int
    local_cores: int
    memory: int
    shuffle_store: str
    shuffle_service: tuple[str, ...]
    shuffle_replicas: int
    python_functions: bool
    mixed: bool
    jvm_expressions: str
    cache_memory: int | None
    single_task_size: int
    planner_scan_task_size: int
    planner_shuffle_task_size: int
    planner_replicated_scan_size: int
    planner_continued_stage_size: int
    planner_broadcast_size: int
    planner_runtime_filter_size: int
    executor_memory: int
    executor_insecure: bool
    shuffle_port: int
    shuffle_memory_fraction: float
    shuffle_spill_threshold: float
    shuffle_max_message_size: int
    shuffle_compression: str
    shuffle_retry_attempts: int
    shuffle_retry_delay_ms: int
    shuffle_timeout_seconds: float
    task_attempts: int
    timeout_seconds: float
    progress: str
    ui: str
    explain_spark: bool
    tracing: bool
    metrics_port: int | None
    metrics_host: str
    history_dir: str
    history_max_size: int
    history_max_age_days: float
    plugin: tuple[tuple[str, str], ...]
    """The options of plug-ins, without their prefix, in order."""
    shuffle_options: tuple[tuple[str, str], ...]
    """Those of `shuffle.*` and `plugin.*` that were set, as they were written."""

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> Config:
        """Parse the options in `settings` (Spark's configuration). ConfigError for a bad value or an unknown name."""
        for key in settings:
            if key.startswith(PREFIX) and key not in _KEYS and not _is_plugins(key):
                raise ConfigError(f"there is no option {key}.", hint="Run `volley config` for the list.")
        plugin = {
            key.removeprefix(PLUGIN_PREFIX): value for key, value in settings.items() if _is_plugins(key)
        }
        values = {field: _value(option, settings) for field, option in _FIELDS.items()}
        return cls(**values, plugin=tuple(sorted(plugin.items())), shuffle_options=_shuffle_options(settings))


def read_enabled(text: str) -> bool:
    """The value of `spark.volley.enabled`, which is asked before each action, when the others are not read."""
    option = _FIELDS["enabled"]
    return bool(_value(option, {option.key: text}))


def _value(option: Option, settings: Mapping[str, str]) -> Any:
    text = settings.get(option.key, option.default)
    try:
        return option.parse(text.strip())
    except ValueError as error:
        raise ConfigError(f"{option.key}={text!r}: {error}.", hint=option.meaning) from error


def _shuffle_options(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    names = {
        key.removeprefix(PREFIX): value.strip() for key, value in settings.items() if key.startswith(PREFIX)
    }
    return tuple(sorted(item for item in names.items() if item[0].startswith(("shuffle.", "plugin."))))


def _is_plugins(key: str) -> bool:
    return key.startswith(PLUGIN_PREFIX)


def _field(name: str) -> str:
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
    return snake.replace(".", "_")


_KEYS = frozenset(option.key for option in OPTIONS)
_FIELDS = {_field(option.name): option for option in OPTIONS}
