# SPDX-License-Identifier: Apache-2.0
"""The format of a daemon's log: one line per record, as text or as JSON, with the id of the query it is about.

    2026-01-31 12:00:00,123 INFO volley.worker.slots query=1f2e3d attempt 1f2e3d/s0/t0/a0 began
    {"time": "2026-01-31T12:00:00.123+00:00", "level": "INFO", "logger": "volley.worker.slots", "query": "1f2e3d", ...}

Loggers have the names of their modules, so `volley.shuffle=DEBUG` sets the level of a component.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TextIO

from volley.errors import ConfigError
from volley.ids import QueryId

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def about(query: QueryId | str) -> dict[str, str]:
    """The `extra` argument of a log call: the query that the line is about."""
    return {"query": str(query)}


def configure_logs(format: str, levels: Sequence[str], stream: TextIO | None = None) -> None:
    """Log to `stream`, standard error by default. Each of `levels` is LEVEL or COMPONENT=LEVEL. ConfigError if not."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    # Other libraries log warnings and above only.
    root.setLevel(logging.WARNING)
    logging.getLogger("volley").setLevel(logging.INFO)
    for text in levels:
        component, _, level = text.rpartition("=")
        if level.upper() not in _LEVELS:
            raise ConfigError(
                f"{text!r} is no log level.",
                hint=f"Use one of {', '.join(_LEVELS)}, or volley.worker=DEBUG for one component.",
            )
        logging.getLogger(component or "volley").setLevel(level.upper())


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(query)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        query = getattr(record, "query", "")
        shown = logging.makeLogRecord(record.__dict__ | {"query": f"query={query} " if query else ""})
        # A line break in a message, which may come from a peer, would look like another line.
        return super().format(shown).replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if query := getattr(record, "query", ""):
            line["query"] = query
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Repeated(logging.Filter):
    """Lets one line through per `every_seconds`, and counts the others in it: a peer must not fill the disk."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        super().__init__()
        self._every_seconds = every_seconds
        self._next = 0.0
        self._held = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            self._held += 1
            return False
        if self._held:
            record.msg = f"{record.getMessage()} ({self._held} more since the last line)"
            record.args = ()
        self._next, self._held = now + self._every_seconds, 0
        return True
