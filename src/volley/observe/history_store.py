# SPDX-License-Identifier: Apache-2.0
"""The history of queries in a folder: one SQLite file that several programs write and read at the same time.

    queries(query, started, ..., summary, detail)    a row a query; `detail` is compressed JSON: its plan and events

Rows are added and replaced, each in one transaction. The file is bounded: rows beyond a size or an age are deleted,
oldest first. Only the owner of the folder can read it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volley.process.machine import state_directory

FILE = "volley-history.sqlite"
_BUSY_SECONDS = 10.0
_DETAIL = ("plan", "events")
# A program that has not updated a running query for this long is considered dead.
_SILENT_SECONDS = 30.0
# When the file is too large, delete some more, so that the next rows fit without another cleanup.
_KEPT_SHARE = 0.9

_SCHEMA = """
CREATE TABLE IF NOT EXISTS queries (
    query TEXT PRIMARY KEY,
    started REAL NOT NULL,
    updated REAL NOT NULL,
    outcome TEXT NOT NULL,
    engine TEXT NOT NULL,
    application TEXT NOT NULL,
    summary TEXT NOT NULL,
    detail BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS queries_started ON queries (started);
CREATE INDEX IF NOT EXISTS queries_updated ON queries (updated);
"""


def default_directory() -> Path:
    """Where the history is unless an option says otherwise."""
    return state_directory()


@dataclass(frozen=True)
class Limits:
    """The limits of the history."""

    size_bytes: int = 128 << 20
    age_seconds: float = 30 * 86400.0


DEFAULT_LIMITS = Limits()


class HistoryStore:
    """The history in `directory`. Methods may raise sqlite3.Error and OSError. Not for use by several threads."""

    def __init__(self, directory: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self.path = directory / FILE
        self._limits = limits
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        # Only before the first table: deleted rows then shrink the file.
        self._connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        # Readers do not wait for writers. A file system that cannot do that keeps the mode it has.
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A power cut may lose the last rows, and never damages the file.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)

    def save(self, records: Iterable[dict[str, Any]]) -> None:
        """Add or replace records, all in one transaction."""
        rows = [_row(record) for record in records]
        with self._transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO queries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def prune(self) -> int:
        """Delete what is beyond the limits. Returns the number of deleted queries."""
        with self._transaction():
            oldest = time.time() - self._limits.age_seconds
            deleted = self._connection.execute("DELETE FROM queries WHERE started < ?", (oldest,)).rowcount
            excess = self._used_bytes() - self._limits.size_bytes
            if excess > 0:
                excess += int(self._limits.size_bytes * (1 - _KEPT_SHARE))
                deleted += self._delete_oldest(excess)
        # It frees a page at each step, and `execute` makes one step.
        self._connection.executescript("PRAGMA incremental_vacuum")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return deleted

    def close(self) -> None:
        self._connection.close()

    def _used_bytes(self) -> int:
        values = [
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        ]
        return int((values[0] - values[1]) * values[2])

    def _delete_oldest(self, size_bytes: int) -> int:
        rows = self._connection.execute(
            "SELECT query, length(summary) + length(detail) + 200 FROM queries ORDER BY started"
        )
        chosen = []
        for query, size in rows:
            if size_bytes <= 0:
                break
            chosen.append((query,))
            size_bytes -= size
        self._connection.executemany("DELETE FROM queries WHERE query = ?", chosen)
        return len(chosen)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # Take the lock of writers at once: a transaction that begins as a reader may not become one.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _row(record: dict[str, Any]) -> Sequence[Any]:
    summary = {key: value for key, value in record.items() if key not in _DETAIL}
    detail = {key: record[key] for key in _DETAIL}
    return (
        record["query"],
        record["started"],
        record["updated"],
        record["outcome"],
        record["engine"],
        record["application"],
        json.dumps(summary),
        zlib.compress(json.dumps(detail, separators=(",", ":")).encode(), 6),
    )


class HistoryReader:
    """Reads the history in `directory`, which need not exist. It never writes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._connection: sqlite3.Connection | None = None

    def summaries(
        self,
        limit: int = 100,
        *,
        before: float | None = None,
        outcome: str = "",
        engine: str = "",
        search: str = "",
    ) -> list[dict[str, Any]]:
        """Summaries, newest first. `before` is a start time; `search` is a part of any text of a summary."""
        conditions, values = ["1"], list[Any]()
        for column, value in (("outcome", outcome), ("engine", engine)):
            if value:
                conditions.append(f"{column} = ?")
                values.append(value)
        if before is not None:
            conditions.append("started < ?")
            values.append(before)
        if search:
            conditions.append("instr(lower(summary), lower(?)) > 0")
            # As it is written in JSON.
            values.append(json.dumps(search)[1:-1])
        text = f"SELECT summary FROM queries WHERE {' AND '.join(conditions)} ORDER BY started DESC LIMIT ?"
        return [_living(json.loads(summary)) for (summary,) in self._rows(text, (*values, limit))]

    def get(self, query: str) -> dict[str, Any] | None:
        """One record as a whole; None if there is none. A beginning of its id is enough if only one has it."""
        rows = list(
            self._rows(
                "SELECT summary, detail FROM queries WHERE substr(query, 1, ?) = ? LIMIT 2",
                (len(query), query),
            )
        )
        if len(rows) != 1 or not query:
            return None
        ((summary, detail),) = rows
        rest: dict[str, Any] = json.loads(zlib.decompress(detail))
        return _living(json.loads(summary)) | rest

    def changed_since(self, updated: float, limit: int = 200) -> list[dict[str, Any]]:
        """Summaries that were written after this time, oldest change first."""
        text = "SELECT summary FROM queries WHERE updated > ? ORDER BY updated LIMIT ?"
        return [json.loads(summary) for (summary,) in self._rows(text, (updated, limit))]

    def count(self) -> int:
        return int(next(iter(self._rows("SELECT count(*) FROM queries", ())), (0,))[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, text: str, values: Sequence[Any]) -> list[Any]:
        if self._connection is None:
            if not self.path.exists():
                return []
            self._connection = sqlite3.connect(
                f"file:{self.path}?mode=ro", uri=True, timeout=_BUSY_SECONDS, check_same_thread=False
            )
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.OperationalError as error:
            # A program that has just made the file has not made the table yet.
            if "no such table" in str(error):
                return []
            raise


def _living(summary: dict[str, Any]) -> dict[str, Any]:
    """A query that was running when its program was killed is `lost`."""
    if summary["outcome"] == "running" and time.time() - summary["updated"] > _SILENT_SECONDS:
        summary["outcome"] = "lost"
    return summary
