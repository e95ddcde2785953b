# SPDX-License-Identifier: Apache-2.0
"""Says of each logged query which of its operators would be native, and estimates what that would gain.

The plan in an event log is text: types, options and constants are not in it. So this is a forecast by names of
operators and functions; `volley.explain` on the query itself is exact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from volley.codes import remedy_of
from volley.formats import can_read
from volley.qualification.event_log import EventLog, LoggedQuery, Operator
from volley.support.operators import OPERATORS
from volley.support.reasons import Engine, Reason

SPEEDUP = 3.0
"""How many times faster native work is taken to be, unless told otherwise."""

_FUNCTION = re.compile(r"(?<![\w.`#])([a-z_][a-z0-9_]*)\(")
# Words before a bracket in plan texts that are no functions.
_WORDS = frozenset(
    ("partial", "merge", "hashpartitioning", "rangepartitioning", "roundrobinpartitioning", "windowspecdefinition",
     "specifiedwindowframe", "isnotnull", "isnull", "cast", "knownfloatingpointnormalized", "normalizenanandzero",
     "subquery", "dynamicpruning", "dynamicpruningexpression", "in", "keys", "functions", "output", "distinct")
)  # fmt: skip
_SCAN = re.compile(r"(?:Scan|FileScan|BatchScan) (\w+)")
_WRITTEN_FORMATS = ("parquet", "csv", "json", "orc")
_WRITES = ("Execute ", "WriteFiles", "AppendData", "OverwriteByExpression", "CreateTable", "ReplaceTable")


@dataclass(frozen=True)
class Verdict:
    """What would happen to one operator. `reason` is a code, with `what` it is about; empty if it is native."""

    operator: str
    reason: str = ""
    what: str = ""


@dataclass(frozen=True)
class QueryForecast:
    """`fraction` is the share of operators that would be native; `saved_seconds` estimates what that would gain."""

    application: str
    query: int
    description: str
    engine: Engine
    fraction: float
    seconds: float
    task_seconds: float
    saved_seconds: float
    verdicts: tuple[Verdict, ...]

    @property
    def problems(self) -> tuple[Verdict, ...]:
        return tuple(dict.fromkeys(verdict for verdict in self.verdicts if verdict.reason))


@dataclass(frozen=True)
class Forecast:
    """The forecast for several applications."""

    queries: tuple[QueryForecast, ...]
    speedup: float

    @property
    def seconds(self) -> float:
        return sum(query.seconds for query in self.queries)

    @property
    def saved_seconds(self) -> float:
        return sum(query.saved_seconds for query in self.queries)

    @property
    def engines(self) -> Counter[str]:
        return Counter(query.engine for query in self.queries)

    @property
    def obstacles(self) -> list[tuple[Verdict, int, float]]:
        """What is not native: each with its queries and their seconds, the most costly first."""
        found: dict[tuple[str, str], list[QueryForecast]] = {}
        for query in self.queries:
            for key in {(verdict.reason, verdict.what) for verdict in query.problems}:
                found.setdefault(key, []).append(query)
        ranked = [
            (Verdict("", reason, what), len(queries), sum(query.seconds for query in queries))
            for (reason, what), queries in found.items()
        ]
        return sorted(ranked, key=lambda entry: -entry[2])

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            f"Native work is taken to be {self.speedup:g} times as fast as Spark's.",
            "All operators of a query are taken to cost the same; event logs do not say.",
            "A query with fewer than half of its operators native is taken to stay on Spark.",
            "Plans are read by names: types and constants may still be in the way. volley.explain is exact.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "queries": [asdict(query) for query in self.queries],
            "engines": dict(self.engines),
            "seconds": self.seconds,
            "saved_seconds": self.saved_seconds,
            "obstacles": [
                {
                    "reason": verdict.reason,
                    "what": verdict.what,
                    "queries": count,
                    "seconds": seconds,
                    "advice": remedy_of(verdict.reason),
                }
                for verdict, count, seconds in self.obstacles
            ],
            "assumptions": list(self.assumptions),
        }


def forecast(logs: Iterable[EventLog], speedup: float = SPEEDUP) -> Forecast:
    """The forecast for the queries of these logs that ended well."""
    queries = [query for log in logs for query in log.queries.values()]
    done = [query for query in queries if query.seconds is not None and not query.failed and query.operators]
    return Forecast(tuple(_forecast(query, speedup) for query in done), speedup)


def _forecast(query: LoggedQuery, speedup: float) -> QueryForecast:
    verdicts = tuple(judge(operator) for operator in query.operators)
    fraction = sum(not verdict.reason for verdict in verdicts) / len(verdicts)
    engine: Engine = "native" if fraction == 1 else "mixed" if fraction >= 0.5 else "spark"
    seconds = query.seconds or 0.0
    return QueryForecast(
        query.application,
        query.number,
        query.description,
        engine,
        fraction,
        seconds,
        query.task_seconds,
        seconds * estimate_gain(engine, fraction, speedup),
        verdicts,
    )


def estimate_gain(engine: Engine, fraction: float, speedup: float) -> float:
    """The share of a query's time that native operators, `fraction` of all, would save."""
    return fraction * (1 - 1 / speedup) if engine != "spark" else 0.0


def judge(operator: Operator) -> Verdict:
    """Whether an operator would be native, by its name and the functions in its text."""
    name = operator.name
    if scan := _SCAN.match(name):
        source = scan[1].lower()
        if can_read(source) or source in ("existingrdd", "onerowrelation"):
            return Verdict(name)
        return Verdict(name, str(Reason.FILE_FORMAT), source)
    if name.startswith(_WRITES):
        written = any(re.search(rf"\b{format}\b", operator.text.lower()) for format in _WRITTEN_FORMATS)
        return Verdict(name) if written else Verdict(name, str(Reason.FILE_FORMAT), name)
    rule = OPERATORS.get(f"{name}Exec") or OPERATORS.get(f"{_LOGGED_NAMES.get(name, name)}Exec")
    if rule is None:
        return Verdict(name, str(Reason.OPERATOR), name)
    if rule.reason is not None:
        return Verdict(name, str(rule.reason), name)
    for function in _functions(operator.text):
        if reason := reason_for(function):
            return Verdict(name, str(reason), function)
    return Verdict(name)


# Where the name in the log is not that of the class.
_LOGGED_NAMES = {
    "Exchange": "ShuffleExchange",
    "Scan OneRowRelation": "OneRowRelation",
    "LocalTableScan": "LocalTableScan",
}


def _functions(text: str) -> Sequence[str]:
    found = [name.removeprefix("partial_").removeprefix("merge_") for name in _FUNCTION.findall(text)]
    return [name for name in dict.fromkeys(found) if name not in _WORDS]


def reason_for(function: str) -> Reason | None:
    """Why Spark would run an operator with this function; None if it would be native.

    What has no native form is evaluated by Spark's own code inside the native plan, except for what depends on chance
    or on Spark's tasks. An unknown name may be a column's or a user's function, whose operator says so itself.
    """
    if function in _OF_SPARK_TASKS:
        return Reason.EXPRESSION
    if function in _OF_SPARK_PARTITIONS | PLACED_IN_PARTITIONS or function.startswith(_SKETCHES):
        return Reason.NONDETERMINISTIC
    return None


_OF_SPARK_TASKS = frozenset(
    ("shuffle", "input_file_block_start", "input_file_block_length", "java_method", "reflect",
     "try_reflect")
)  # fmt: skip
PLACED_IN_PARTITIONS = frozenset(
    {
        "monotonically_increasing_id",
        "rand",
        "randn",
        "random",
        "randstr",
        "spark_partition_id",
        "uniform",
        "uuid",
    }
)
"""Native where Spark's partitions are known, which a log does not show."""
_OF_SPARK_PARTITIONS = frozenset(
    (
        "approx_top_k",
        "collect_union",
        "histogram_numeric",
        "hll_union",
        "hll_union_agg",
        "vector_avg",
        "vector_sum",
    )
)
_SKETCHES = ("approx_top_k_", "kll_", "tuple_")
