# SPDX-License-Identifier: Apache-2.0
"""Runs queries on one engine, for the benchmark that started this process.

    started as      python serve.py ENGINE, in the environment of the engine, which has no Volley
    each request    one line of JSON on standard input
      {"open": {"data", "tables", "cores", "settings"}}      ->  {"versions"}
      {"run": SQL, "rows": FILE}                             ->  {"seconds", ...}, the rows as Arrow in FILE
      {"order": SQL}                                         ->  {"order"}: the columns it sorts by, on Spark only
      {"program": PYTHON FILE, "data": DIR, "target": DIR, "rows": FILE}
                                                             ->  the same as run, for a PySpark program
    a failure       {"error": message}; the process goes on

All engines return Arrow, so that none pays for a conversion that another avoids. Seconds are measured here, from the
text to the last row.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any


class DuckDB:
    packages = ("duckdb",)

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        self._connection = importlib.import_module("duckdb").connect()
        self._connection.execute(f"set threads = {cores}")
        for table in tables:
            files = f"{data / table}/*.parquet"
            self._connection.execute(f"create view {table} as select * from read_parquet('{files}')")

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        # Names in backticks are Spark's.
        self._connection.execute(sql.replace("`", '"'))
        # It has another name since version 2.
        fetch = getattr(self._connection, "to_arrow_table", None) or self._connection.fetch_arrow_table
        rows = fetch()
        return rows, {"seconds": time.perf_counter() - started}


class Polars:
    packages = ("polars",)

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        os.environ["POLARS_MAX_THREADS"] = str(cores)
        polars = importlib.import_module("polars")
        frames = {table: polars.scan_parquet(f"{data / table}/*.parquet") for table in tables}
        self._context = polars.SQLContext(frames)

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        rows = self._context.execute(sql, eager=False).collect(engine="streaming").to_arrow()
        return rows, {"seconds": time.perf_counter() - started}


class Daft:
    packages = ("daft",)

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
        self._daft = importlib.import_module("daft")
        self._frames = {table: self._daft.read_parquet(f"{data / table}/*.parquet") for table in tables}

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        rows = self._daft.sql(sql, register_globals=False, **self._frames).to_arrow()
        return rows, {"seconds": time.perf_counter() - started}


class Sail:
    packages = ("pysail", "pyspark-client")

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        self._server = importlib.import_module("pysail.spark").SparkConnectServer()
        self._server.start(background=True)
        _, port = self._server.listening_address
        session = importlib.import_module("pyspark.sql").SparkSession
        self.spark = session.builder.remote(f"sc://localhost:{port}").getOrCreate()
        for key, value in settings.items():
            # Those of Volley mean nothing here.
            if key.startswith("spark.sql."):
                self.spark.conf.set(key, value)
        for table in tables:
            self.spark.read.parquet(str(data / table)).createOrReplaceTempView(table)

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        rows = self.spark.sql(sql).toArrow()
        return rows, {"seconds": time.perf_counter() - started}


class OnSpark:
    """Spark, or Volley on Spark. The seconds of planning are a part of them."""

    packages: tuple[str, ...] = ("pyspark",)

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        engines = importlib.import_module("volley.bench.engines")
        self.spark = engines.session(f"local[{cores}]", settings, data, tables)
        self._engine = self._make(engines)

    def _make(self, engines: Any) -> Any:
        return engines.Spark(self.spark)

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        ran = self._engine.run(sql)
        fields = (
            "native",
            "reasons",
            "spark_tasks",
            "planning_seconds",
            "capture_seconds",
            "execution_seconds",
        )
        answer = {name: getattr(ran, name) for name in fields}
        cost = ran.cost.to_dict() if ran.cost else None
        return ran.table, answer | {"seconds": ran.seconds, "operators": ran.operators, "cost": cost}

    def order(self, sql: str) -> list[int] | None:
        """The columns that a query sorts by."""
        columns: list[int] | None = importlib.import_module("volley.bench.order").sort_columns(
            self.spark.sql(sql)
        )
        return columns


class OnVolley(OnSpark):
    packages = ("volley-spark", "pyspark", "datafusion")

    def _make(self, engines: Any) -> Any:
        return engines.Volley(self.spark)


class DataFusion:
    packages = ("datafusion",)

    def __init__(self, data: Path, tables: list[str], cores: int, settings: dict[str, str]) -> None:
        engines = importlib.import_module("volley.bench.engines")
        self._engine = engines.DataFusion(data, cores, tables)

    def run(self, sql: str) -> tuple[Any, dict[str, Any]]:
        ran = self._engine.run(sql)
        return ran.table, {"seconds": ran.seconds}


ENGINES: dict[str, Any] = {
    "volley": OnVolley,
    "spark": OnSpark,
    "datafusion": DataFusion,
    "sail": Sail,
    "duckdb": DuckDB,
    "polars": Polars,
    "daft": Daft,
}


def open_engine(name: str, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    cores = int(request["cores"])
    if hasattr(os, "sched_setaffinity"):
        # Every engine has the same cores, whether or not it can be told how many threads to use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    kind = ENGINES[name]
    engine = kind(Path(request["data"]), request["tables"], cores, request["settings"])
    return engine, {"versions": {package: metadata.version(package) for package in kind.packages}}


def run_program(engine: Any, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Run a PySpark program: its function `run` gets the session and the folder to write to, and returns a frame."""
    if not hasattr(engine, "spark"):
        raise RuntimeError("it is a PySpark program")
    started = time.perf_counter()
    program = runpy.run_path(request["program"])
    frame = program["run"](engine.spark, request["data"], request["target"])
    rows = frame.toArrow()
    return rows, {"seconds": time.perf_counter() - started}


def save_rows(rows: Any, file: str) -> None:
    pa = importlib.import_module("pyarrow")
    if not isinstance(rows, pa.Table):
        rows = pa.table(rows)
    # Metadata of pandas, or of another engine, is no part of the rows.
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, rows.schema.remove_metadata()) as writer:
        writer.write_table(rows.replace_schema_metadata(None))


def serve(name: str, answers: Any) -> None:
    engine: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "open" in request:
                engine, answer = open_engine(name, request["open"])
            elif "order" in request:
                answer = {"order": engine.order(request["order"])}
            else:
                ran = run_program(engine, request) if "program" in request else engine.run(request["run"])
                rows, answer = ran
                save_rows(rows, request["rows"])
        except Exception as error:
            # Whatever it raises, the next query may be one that it can run.
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    # Engines print what they like: only answers go to the caller.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], answers)
    # Some engines leave threads that keep a process from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
