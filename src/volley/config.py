# SPDX-License-Identifier: Apache-2.0
"""Every option of Volley, declared once: its type, default and meaning. The reference in docs/ is made from here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from volley.errors import ConfigError

PREFIX = "spark.volley."


@dataclass(frozen=True)
class Option:
    """One option. `parse` turns the text into a value or raises ValueError with what is allowed."""

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


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError(f"expected a whole number of at least {minimum}")
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError("expected a number of seconds above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError("expected a number between 0 and 1")
    return value


def parse_bytes(text: str) -> int:
    """A size such as 64m or 1.5g; k, m, g and t are powers of 1024, as Spark has them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None or (size := int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))) < 1:
        raise ValueError("expected a size such as 64m or 2g")
    return size


def _bytes_or_zero(text: str) -> int:
    return 0 if text == "0" else parse_bytes(text)


def _share_or_all(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise ValueError("expected a port, or 0 for any")
    return value


def _store(text: str) -> str:
    if text.lower() in ("memory", "service"):
        return text.lower()
    if "://" not in text:
        raise ValueError(
            "expected memory, service, or the URI of a folder such as file:///data or s3://bucket/folder"
        )
    return text.rstrip("/") if "?" not in text else text


def parse_addresses(text: str) -> tuple[str, ...]:
    """host:port,... as a tuple, each once."""
    addresses = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for address in addresses:
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+):\d{1,5}", address):
            raise ValueError(f"expected host:port,...; {address!r} is not host:port")
    return addresses


# A worker has one store for all who use it, so these are settled when it starts.
_OF_WORKERS = "For `volley worker --set`."
_OF_BOTH = "Alike in the session and for `volley worker --set`."

OPTIONS: tuple[Option, ...] = (
    Option(
        "enabled",
        "boolean",
        "true",
        "Off: this session runs on Spark as if Volley were not there, also after volley.enable.",
        _boolean,
    ),
    Option(
        "fallback",
        "choice",
        "allow",
        "What to do when something does not run natively: allow, warn or error.",
        _choice("allow", "warn", "error"),
    ),
    Option(
        "transport",
        "choice",
        "local",
        "How a task reaches a worker: local (in this process), flight (worker daemons) or spark (its executors).",
        _choice("local", "flight", "spark"),
    ),
    Option(
        "workers", "addresses", "", "The worker daemons of transport flight, host:port,...", parse_addresses
    ),
    Option(
        "worker.timeoutSeconds",
        "number",
        "10",
        "A worker daemon that does not answer for so long is taken for lost; its tasks go elsewhere.",
        _seconds,
    ),
    Option(
        "tokenFile",
        "file",
        "",
        "Holds the token that worker daemons ask for; without it, the environment variable VOLLEY_TOKEN does.",
        str,
    ),
    Option(
        "tls.caFile", "file", "", "Certificates (PEM) to trust. Set: connections to workers use TLS.", str
    ),
    Option(
        "tls.certificateFile", "file", "", "This side's certificate (PEM), where workers ask for one.", str
    ),
    Option("tls.keyFile", "file", "", "The key (PEM) of that certificate.", str),
    Option(
        "local.workers",
        "integer",
        "1",
        "In-process workers. With 1 a whole query is one plan; above 1 exchanges are real.",
        _at_least(1),
    ),
    Option(
        "local.cores",
        "integer",
        "0",
        "Cores that all in-process workers share; 0 takes those of this process.",
        _at_least(0),
    ),
    Option(
        "shuffle.store",
        "store",
        "memory",
        "Where exchanged data lives: memory (of those who wrote it, or their disks), or, outliving them, service"
        " (shuffle servers) or a folder that all workers reach, as a URI (file://, s3://, ...). " + _OF_BOTH,
        _store,
    ),
    Option(
        "shuffle.service",
        "addresses",
        "",
        "The shuffle servers of store service, host:port,... " + _OF_BOTH,
        parse_addresses,
    ),
    Option(
        "shuffle.replicas",
        "integer",
        "2",
        "On how many shuffle servers each block is kept, where there are so many. " + _OF_BOTH,
        _at_least(1),
    ),
    Option(
        "mixed",
        "boolean",
        "true",
        "Run what is native of a query natively when Spark has to run the rest; off: Spark then runs all of it.",
        _boolean,
    ),
    Option(
        "singleTaskSize",
        "size",
        "32m",
        "A query that reads no more than this of files (the columns that it needs, and 256k a file) is one task on one "
        "worker; 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.scanTaskSize",
        "size",
        "2m",
        "A scan of files gets another task for every so many bytes that it reads, up to one per worker.",
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
        "A broadcast side that scans no more than this is computed by every task instead of in a stage; 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.continuedStageSize",
        "size",
        "12m",
        "A single task goes on with the next stage if it reads no more than this for it; 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.broadcastSize",
        "size",
        "10m",
        "A side of a shuffle join that proves no larger than this is read whole by every task; 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "planner.runtimeFilterSize",
        "size",
        "64m",
        "The most that a task reads of the other side of a join to drop rows before they are exchanged; 0: never.",
        _bytes_or_zero,
    ),
    Option(
        "executor.memory",
        "size",
        "0",
        "Transport spark: what the sidecar of an executor may use; 0 takes the executor's overhead memory.",
        _bytes_or_zero,
    ),
    Option(
        "executor.insecure",
        "boolean",
        "false",
        "Sidecars of Spark's executors, and the driver for executors, may listen beyond loopback without TLS. They ask "
        "for a token in any case.",
        _boolean,
    ),
    Option(
        "shuffle.port",
        "integer",
        "0",
        "Port of a worker's Flight endpoint, 0 for any. " + _OF_WORKERS,
        _port,
    ),
    Option(
        "shuffle.memoryFraction",
        "number",
        "0.3",
        "Share of a worker's memory for exchanged data. " + _OF_WORKERS,
        _share,
    ),
    Option(
        "shuffle.spillThreshold",
        "number",
        "0.8",
        "Share of that from which new output goes to disk. " + _OF_WORKERS,
        _share_or_all,
    ),
    Option(
        "shuffle.maxMessageSize",
        "size",
        "64m",
        "Largest Flight message of exchanged data and results. " + _OF_WORKERS,
        parse_bytes,
    ),
    Option(
        "shuffle.compression",
        "choice",
        "auto",
        "Of exchanged data on disk and between hosts: none, lz4, zstd, or auto (lz4). " + _OF_WORKERS,
        _choice("none", "lz4", "zstd", "auto"),
    ),
    Option(
        "shuffle.retryAttempts",
        "integer",
        "3",
        "How often a fetch that failed is tried again. " + _OF_WORKERS,
        _at_least(0),
    ),
    Option(
        "shuffle.retryDelayMs",
        "integer",
        "1000",
        "Wait before the first of these; it doubles each time, with jitter and a cap. " + _OF_WORKERS,
        _at_least(0),
    ),
    Option(
        "shuffle.timeoutSeconds",
        "number",
        "20",
        "A fetch that brings nothing for so long has failed: its worker hangs or is cut off. " + _OF_WORKERS,
        _seconds,
    ),
    Option(
        "task.attempts", "integer", "3", "How often a task may be tried before the query fails.", _at_least(1)
    ),
    Option(
        "timeoutSeconds",
        "number",
        "3600",
        "A native query that takes longer is cancelled with DEADLINE_EXCEEDED.",
        _seconds,
    ),
    Option(
        "progress",
        "choice",
        "auto",
        "Show a progress line for queries that last: auto (on a terminal), on or off.",
        _choice("auto", "on", "off"),
    ),
)


@dataclass(frozen=True)
class Config:
    """The options of one query, read once when it starts."""

    enabled: bool
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
    shuffle_store: str
    shuffle_service: tuple[str, ...]
    shuffle_replicas: int
    mixed: bool
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

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> Config:
        """The options as `settings` (Spark's configuration) has them; a bad value or an unknown name is an error."""
        for key in settings:
            if key.startswith(PREFIX) and key not in _KEYS:
                raise ConfigError(f"there is no option {key}.", hint="Run `volley config` for the list.")
        return cls(**{field: _value(option, settings) for field, option in _FIELDS.items()})


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


def _field(name: str) -> str:
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
    return snake.replace(".", "_")


_KEYS = frozenset(option.key for option in OPTIONS)
_FIELDS = {_field(option.name): option for option in OPTIONS}
