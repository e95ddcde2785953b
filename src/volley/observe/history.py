# SPDX-License-Identifier: Apache-2.0
"""The history of queries for programs: `volley.history(spark)`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from html import escape
from typing import Any, overload

from pyspark.sql import DataFrame, SparkSession

from volley.config import Config
from volley.errors import ConfigError
from volley.observe.history_store import HistoryReader
from volley.observe.history_writer import flush_history, history_directory
from volley.session_settings import read_settings


@dataclass(frozen=True)
class PastQuery:
    """One query of the history. `record` has everything that is kept of it; docs/events.md describes it.

    `outcome` is answered, failed, cancelled, running, or lost for one whose program ended before it did.
    """

    query: str
    started: datetime
    application: str
    action: str
    description: str
    caller: str
    engine: str
    outcome: str
    seconds: float
    rows: int | None
    reasons: tuple[str, ...]
    error: str | None
    record: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, record: dict[str, Any]) -> PastQuery:
        return cls(
            query=record["query"],
            started=datetime.fromtimestamp(record["started"], timezone.utc),
            application=record["application"],
            action=record["action"],
            description=record["description"],
            caller=record["caller"],
            engine=record["engine"],
            outcome=record["outcome"],
            seconds=record["seconds"],
            rows=record["rows"],
            reasons=tuple(dict.fromkeys(reason["reason"] for reason in record["reasons"])),
            error=record["error"]["code"] if record["error"] else None,
            record=record,
        )

    def __str__(self) -> str:
        age = _age(time.time() - self.started.timestamp())
        what = f"{self.action} at {self.caller}" + (f" ({self.description})" if self.description else "")
        rows = f", {self.rows:,} rows" if self.rows is not None else ""
        why = "; ".join(filter(None, [self.error, *self.reasons]))
        return (
            f"{self.query}  {age} ago  {what}: {self.engine}, {self.outcome}, {self.seconds:.3f} s{rows}"
            + (f"  [{why}]" if why else "")
        )


class History(Sequence[PastQuery]):
    """Queries, newest first."""

    def __init__(self, queries: Sequence[PastQuery], spark: SparkSession) -> None:
        self._queries = tuple(queries)
        self._spark = spark

    @overload
    def __getitem__(self, index: int) -> PastQuery: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PastQuery]: ...

    def __getitem__(self, index: int | slice) -> PastQuery | Sequence[PastQuery]:
        return self._queries[index]

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[PastQuery]:
        return iter(self._queries)

    def __str__(self) -> str:
        return "\n".join(map(str, self._queries)) or "no queries"

    def __repr__(self) -> str:
        return f"<volley.history: {len(self)} queries>"

    def to_dataframe(self) -> DataFrame:
        """A DataFrame with a row for each query."""
        rows = [
            (
                *(q.query, q.started, q.application, q.action, q.description, q.caller, q.engine, q.outcome),
                *(q.seconds, q.rows, list(q.reasons), q.error),
            )
            for q in self._queries
        ]
        return self._spark.createDataFrame(rows, _SCHEMA)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(getattr(query, name)))}</td>" for name in _COLUMNS) + "</tr>"
            for query in self._queries
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_COLUMNS = ("query", "started", "action", "caller", "engine", "outcome", "seconds", "rows", "error")
_SCHEMA = (
    "query string, started timestamp, application string, action string, description string, caller string, "
    "engine string, outcome string, seconds double, rows bigint, reasons array<string>, error string"
)


def history(spark: SparkSession, limit: int = 100) -> History:
    """The last queries of this session's history, newest first: also those of other programs that write to it.

    Each has what `volley.last_query` would say, as far as it is kept; the query itself is not run again. Raises
    ConfigError if the session keeps no history.
    """
    config = Config.read(read_settings(spark))
    directory = history_directory(config.history_dir)
    if directory is None:
        raise ConfigError(
            "this session keeps no history.", hint="Unset spark.volley.history.dir, or name a folder."
        )
    flush_history()
    reader = HistoryReader(directory)
    try:
        summaries = reader.summaries(limit)
        records = [reader.get(summary["query"]) or summary for summary in summaries]
    finally:
        reader.close()
    return History([PastQuery.of(record) for record in records], spark)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
