# SPDX-License-Identifier: Apache-2.0
"""Why something does not run natively: a code for programs, and a message that people can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from volley.python_versions import StrEnum
from volley.support.sql_names import display_name

Engine = Literal["native", "mixed", "spark"]
"""Who runs a query: Volley, both, or Spark."""


class Reason(StrEnum):
    """Codes are public API: they appear in explain, reports and documentation."""

    OPERATOR = "OPERATOR_NOT_SUPPORTED"
    EXPRESSION = "EXPRESSION_NOT_SUPPORTED"
    ARGUMENT_TYPES = "ARGUMENT_TYPES_NOT_SUPPORTED"
    ARGUMENT_VALUE = "ARGUMENT_VALUE_NOT_SUPPORTED"
    DATA_TYPE = "DATA_TYPE_NOT_SUPPORTED"
    CAST = "CAST_NOT_SUPPORTED"
    AGGREGATE = "AGGREGATE_NOT_SUPPORTED"
    WINDOW = "WINDOW_NOT_SUPPORTED"
    FILE_FORMAT = "FILE_FORMAT_NOT_SUPPORTED"
    FILE_SYSTEM = "FILE_SYSTEM_NOT_SUPPORTED"
    FILE_OPTION = "FILE_OPTION_NOT_SUPPORTED"
    DATA_SOURCE = "DATA_SOURCE_NOT_SUPPORTED"
    PYTHON = "PYTHON_FUNCTION_NOT_SUPPORTED"
    TIME_ZONE = "SESSION_TIME_ZONE"
    NONDETERMINISTIC = "DEPENDS_ON_SPARK_PARTITIONS"
    ORDER = "DEPENDS_ON_INPUT_ORDER"
    NO_JVM = "NO_JVM_AT_THE_WORKERS"
    CAPTURE = "PLAN_NOT_READABLE"
    CACHED_BY_SPARK = "CACHED_BY_SPARK"
    OBSERVED = "OBSERVED_BY_SPARK"
    ACTION = "ACTION_NOT_SUPPORTED"
    DISABLED = "DISABLED"
    MIXED = "NOT_WORTH_A_HAND_OVER"
    REPLAY = "REPLAYED_ON_SPARK"
    NO_WORKERS = "NO_WORKERS"
    FAILED = "NATIVE_RUN_FAILED"


@dataclass(frozen=True)
class Unsupported:
    """One root cause: `what` names the node or expression, `detail` says what about it is unsupported."""

    reason: Reason
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"[{self.reason}] {display_name(self.what)}" + (f": {self.detail}" if self.detail else "")


NOT_CERTAIN = "Spark's partitions are not known before the query runs, or not every row has a value"

MEANINGS: dict[Reason, str] = {
    Reason.OPERATOR: "This operator of Spark's plan has no native form.",
    Reason.EXPRESSION: "This expression has no native form.",
    Reason.ARGUMENT_TYPES: "The expression is supported, but not for these argument types.",
    Reason.ARGUMENT_VALUE: "The expression is supported, but not with this constant or option.",
    Reason.DATA_TYPE: "The native engine does not support this type.",
    Reason.CAST: "This cast does not give Spark's result for every value.",
    Reason.AGGREGATE: "This aggregate function, or this use of it, has no native form.",
    Reason.WINDOW: "This window function or frame has no native form.",
    Reason.FILE_FORMAT: "Files of this format are read by Spark.",
    Reason.FILE_SYSTEM: "Files on this file system are read by Spark.",
    Reason.FILE_OPTION: "A reader option or file setting has no native form.",
    Reason.DATA_SOURCE: "A data source, or this use of it, has no native form.",
    Reason.PYTHON: "A Python function uses what only a task of Spark has, or the workers may not run it.",
    Reason.TIME_ZONE: "The result depends on a time zone whose offsets are not in the plan.",
    Reason.NONDETERMINISTIC: "The result depends on how Spark partitions the rows.",
    Reason.ORDER: "The rows depend on an ORDER BY below, whose order does not reach this operator natively.",
    Reason.NO_JVM: "Spark's own code could evaluate this, but not all workers have a JVM for it.",
    Reason.CAPTURE: "Part of Spark's plan could not be read exactly.",
    Reason.CACHED_BY_SPARK: "Only Spark can compute a cached frame: its rows are read from there once, and kept.",
    Reason.OBSERVED: "The metrics of `df.observe` depend on how Spark runs the query, so Spark runs all of it.",
    Reason.ACTION: "Spark runs this action.",
    Reason.DISABLED: "Volley is disabled on this session: Spark runs everything.",
    Reason.MIXED: "The native part of the query is too small to pay for a hand-over: Spark runs the whole query.",
    Reason.REPLAY: "The native run met data for which Spark may raise an error, so Spark ran the query.",
    Reason.NO_WORKERS: "None of the configured workers could be used, so Spark ran the query.",
    Reason.FAILED: "The native run failed, though not because of the data, so Spark ran the query.",
}
"""What each code means, for the documentation."""
