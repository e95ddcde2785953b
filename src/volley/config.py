"""Every option of Volley, declared once: its type, default and meaning. The reference in docs/ is made from here."""

from __future__ import annotations

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


OPTIONS: tuple[Option, ...] = (
    Option("enabled", "boolean", "true", "Off: this session runs on Spark as if Volley were not there.", _boolean),
    Option(
        "fallback",
        "choice",
        "allow",
        "What to do when something does not run natively: allow, warn or error.",
        _choice("allow", "warn", "error"),
    ),
    Option("transport", "choice", "local", "How a task reaches a worker: local (in this process).", _choice("local")),
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
    Option("task.attempts", "integer", "3", "How often a task may be tried before the query fails.", _at_least(1)),
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
    local_workers: int
    local_cores: int
    task_attempts: int
    timeout_seconds: float
    progress: str

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> Config:
        """The options as `settings` (Spark's configuration) has them; a bad value or an unknown name is an error."""
        known = {option.key for option in OPTIONS}
        for key in settings:
            if key.startswith(PREFIX) and key not in known:
                raise ConfigError(f"there is no option {key}.", hint="Run `volley config` for the list.")
        return cls(**{_field(option.name): _value(option, settings) for option in OPTIONS})


def _value(option: Option, settings: Mapping[str, str]) -> Any:
    text = settings.get(option.key, option.default)
    try:
        return option.parse(text.strip())
    except ValueError as error:
        raise ConfigError(f"{option.key}={text!r}: {error}.", hint=option.meaning) from error


def _field(name: str) -> str:
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
    return snake.replace(".", "_")
