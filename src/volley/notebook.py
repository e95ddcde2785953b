# SPDX-License-Identifier: Apache-2.0
"""Magics for notebooks: `%load_ext volley`, then

%volley                     what the last query did
%volley explain FRAME       which engine runs what of a DataFrame
%volley history             the last queries
%volley on | off            Volley for this session
%%volley_sql [--explain] [--compare] [--into NAME]
select ...                  runs a query and shows its rows; explains it; compares it with Spark; keeps the frame
"""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from volley.bench.compare import difference
from volley.bench.order import sort_columns
from volley.errors import SessionError
from volley.observe.explain import explain
from volley.observe.history import history
from volley.query.session_state import last_query
from volley.session.enable import disable, enable
from volley.session_settings import read_enabled_option
from volley.spark_versions.classic import collect_table

_SHOWN_ROWS = 20


def load(shell: Any) -> None:
    """Register the magics with an IPython shell."""
    magics = _Magics(shell)
    shell.register_magic_function(magics.line, "line", "volley")
    shell.register_magic_function(magics.cell, "cell", "volley_sql")


class _Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def line(self, line: str) -> Any:
        """Volley: the last query, explain FRAME, history, on or off."""
        spark = self._spark()
        match line.split():
            case []:
                return last_query(spark)
            case ["explain", name]:
                return explain(self._shell.ev(name))
            case ["history"]:
                return history(spark)
            case ["on"]:
                enable(spark)
            case ["off"]:
                disable(spark)
            case _:
                raise SessionError(
                    f"%volley does not know {line!r}.", hint="Say explain FRAME, history, on or off."
                )
        return None

    def cell(self, line: str, cell: str) -> None:
        """Run the SQL of a cell. Options: --explain, --compare, --into NAME."""
        parser = argparse.ArgumentParser(prog="%%volley_sql", exit_on_error=False)
        parser.add_argument("--explain", action="store_true")
        parser.add_argument("--compare", action="store_true")
        parser.add_argument("--into")
        options = parser.parse_args(shlex.split(line))
        spark = self._spark()
        frame = spark.sql(cell)
        if options.into:
            self._shell.user_ns[options.into] = frame
        if options.explain:
            explain(frame)
        elif options.compare:
            print(_compare(spark, cell))
        else:
            frame.show(_SHOWN_ROWS)
            print(last_query(spark))

    def _spark(self) -> SparkSession:
        spark = self._shell.user_ns.get("spark") or SparkSession.getActiveSession()
        if spark is None:
            raise SessionError("there is no Spark session.", hint="Make one, and call it `spark`.")
        # Enable Volley unless the session has turned it off explicitly.
        return enable(spark) if read_enabled_option(spark) is None else spark


def _compare(spark: SparkSession, text: str) -> str:
    """Run a query on both engines, and say how long each took and whether the rows are the same."""
    frame = spark.sql(text)
    native, native_seconds = _timed(frame)
    report = last_query(spark)
    disable(spark)
    try:
        expected, spark_seconds = _timed(spark.sql(text))
    finally:
        enable(spark)
    problem = difference(expected, native, sort_columns(frame))
    engine = report.engine if report else "spark"
    return (
        f"Volley ({engine}) {native_seconds:.3f} s, Spark {spark_seconds:.3f} s; "
        f"{native.num_rows:,} rows, {problem or 'the same on both'}"
    )


def _timed(frame: DataFrame) -> tuple[Any, float]:
    started = time.perf_counter()
    rows = collect_table(frame)
    return rows, time.perf_counter() - started
