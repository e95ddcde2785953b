# SPDX-License-Identifier: Apache-2.0
"""The options of a query, read from Spark's configuration. They are declared in `volley.options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from volley.errors import ConfigError
from volley.options import OPTIONS, PLUGIN_PREFIX, PREFIX, Option


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
    shuffle_checkpoint: str
    shuffle_checkpoint_seconds: float
    python_functions: bool
    python_functions_max_files: int
    mixed: bool
    jvm_expressions: str
    cache_memory: int | None
    storage_cache_size: int
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
        return _read(tuple(settings.items()))


# Queries of a session mostly have the same options, and parsing them all takes longer than asking for a short query.
@lru_cache(maxsize=64)
def _read(items: tuple[tuple[str, str], ...]) -> Config:
    settings = dict(items)
    for key in settings:
        if key.startswith(PREFIX) and key not in _KEYS and not _is_plugins(key):
            raise ConfigError(f"there is no option {key}.", hint="Run `volley config` for the list.")
    plugin = {key.removeprefix(PLUGIN_PREFIX): value for key, value in settings.items() if _is_plugins(key)}
    values = {field: _value(option, settings) for field, option in _FIELDS.items()}
    return Config(**values, plugin=tuple(sorted(plugin.items())), shuffle_options=_shuffle_options(settings))


def read_enabled(text: str) -> bool:
    """The value of `spark.volley.enabled` alone, which is read before each action."""
    return _read_flag("enabled", text)


def read_explain_spark(text: str) -> bool:
    """`spark.volley.explain.spark` alone: a bad value of another option must not fail Spark's own explain."""
    return _read_flag("explain_spark", text)


def read_cache_size(text: str | None) -> int:
    """`spark.volley.storage.cacheSize` alone, which is part of the settings of a store; None if it is not set."""
    option = _FIELDS["storage_cache_size"]
    size: int = _value(option, {} if text is None else {option.key: text})
    return size


def _read_flag(field: str, text: str) -> bool:
    option = _FIELDS[field]
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
