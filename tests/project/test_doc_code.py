# SPDX-License-Identifier: Apache-2.0
"""The Python code in the documentation runs. The blocks of a page run in order, in one namespace."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import volley
from helpers.paged_api_example import load_paged_api

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# These need servers or processes of their own, and other tests that do the same.
ELSEWHERE = {
    "docs/connect.md": "tests/connect_server/test_connect_processes.py",
    "docs/storage.md": "tests/storage/test_object_scans.py",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    return [code for kind, code in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == "python"]


WITH_PYTHON = [page for page in PAGES if blocks(page) and name_of(page) not in ELSEWHERE]


class _Api(BaseHTTPRequestHandler):
    """The API of examples/paged_api.py, with one page."""

    def do_GET(self) -> None:
        answer = {"pages": ["/pages/0"], "next": None} if self.path.startswith("/listing") else {"rows": ROWS}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


ROWS = [{"id": n, "name": f"n{n}"} for n in range(20)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """examples/paged_api.py, which some pages are about."""
    with load_paged_api() as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_code_runs(
    page: Path, spark: SparkSession, tmp_path: Path, url: str, example: ModuleType
) -> None:
    spark.dataSource.register(example.PagedApi)
    events = tmp_path / "events"
    (events / "day=2024-02-29").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2]}), events / "day=2024-02-29" / "part-0.parquet")
    # Paths of pages are relative to a folder that Spark's JVM is not in.
    lineitem = {"l_shipdate": [date(1994, 1, 1)], "l_returnflag": ["R"], "l_tax": [0.1]}
    pq.write_table(pa.table(lineitem), tmp_path / "lineitem")
    paths = {f'"{name}"': f'"{tmp_path / name}"' for name in ("orders", "lineitem")}
    paths['"/data/events"'] = f'"{events}"'
    names: dict[str, Any] = {
        "__name__": "documentation",
        **{"spark": spark, "volley": volley, "F": F, "pa": pa, "pytest": pytest, "url": url},
        **{"DataSource": DataSource, "DataSourceReader": DataSourceReader, "InputPartition": InputPartition},
        **{"PagedApi": example.PagedApi, "COLUMNS": example.COLUMNS, "SCHEMA": "id bigint, name string"},
        "get": lambda address: json.load(urlopen(address, timeout=30)),
    }
    for code in blocks(page):
        for written, real in paths.items():
            code = code.replace(written, real)
        exec(compile(code, name_of(page), "exec"), names)


def test_code_that_runs_elsewhere_does() -> None:
    assert all((ROOT / page).exists() and (ROOT / test).exists() for page, test in ELSEWHERE.items())


def test_every_block_says_what_it_is() -> None:
    """A block of Python or SQL is marked as such, or it would not be run."""
    unmarked = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    python = re.compile(r"^(import|from) \w+|^spark\.(sql|range)\(|^volley\.\w+\(", re.MULTILINE)
    for page in PAGES:
        text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert not [code for code in unmarked.findall(text) if python.search(code)], name_of(page)
