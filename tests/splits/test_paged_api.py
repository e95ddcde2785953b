# SPDX-License-Identifier: Apache-2.0
"""The tutorial's example against a real HTTP server: natively, with Spark's rows, and while the listing goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.paged_api_example import EXAMPLE, load_paged_api
from volley.errors import SourceError
from volley.testing.rows import assert_same_rows

PAGES, ROWS, LISTED = 10, 20, 3


class Api:
    """The server. While `go_on` is not set it lists no more than the first pages; `broken` breaks the listing off."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.broken = False
        self.served: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.served.append(self.path)
                status, answer = api.answer(self.path)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, Any]:
        url = urlparse(path)
        if url.path != "/listing":
            page = int(url.path.rpartition("/")[2])
            return 200, {"rows": [{"id": i, "name": f"n{i}"} for i in range(page * ROWS, (page + 1) * ROWS)]}
        start = int(parse_qs(url.query)["from"][0])
        if start:
            self.go_on.wait(60)
            if self.broken:
                return 503, {}
        end = min(start + LISTED, PAGES)
        following = f"/listing?from={end}" if end < PAGES else None
        return 200, {"pages": [f"/pages/{number}" for number in range(start, end)], "next": following}


@pytest.fixture
def api() -> Iterator[Api]:
    running = Api()
    yield running
    running.go_on.set()
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with load_paged_api() as module:
        yield module


@pytest.fixture
def pages(spark: SparkSession, api: Api, example: ModuleType) -> SparkSession:
    spark.dataSource.register(example.PagedApi)
    spark.read.format("paged_api").option("url", api.url).load().createOrReplaceTempView("pages")
    return spark


def test_rows_are_sparks(pages: SparkSession) -> None:
    assert_same_rows(pages, "select name, id from pages where id % 7 < 3")


def test_rows_come_while_the_listing_goes_on(pages: SparkSession, api: Api) -> None:
    api.go_on.clear()
    rows = pages.sql("select id from pages").toLocalIterator()
    # Only the first pages are listed; the server keeps the rest of the listing back until these rows are here.
    assert sorted(next(rows).id for _ in range(LISTED * ROWS)) == list(range(LISTED * ROWS))
    api.go_on.set()
    assert sorted(row.id for row in rows) == list(range(LISTED * ROWS, PAGES * ROWS))
    report = volley.last_query(pages)
    assert report is not None
    assert (report.engine, report.spark_tasks) == ("native", 0)
    assert report.stages[0].feeds[0].found == PAGES


def test_a_limit_ends_the_listing(pages: SparkSession, api: Api) -> None:
    api.go_on.clear()
    assert len(pages.sql("select id from pages").take(5)) == 5
    assert "/listing?from=6" not in api.served


def test_a_listing_that_breaks_off_is_the_querys_error(pages: SparkSession, api: Api) -> None:
    api.broken = True
    with pytest.raises(SourceError, match="503"):
        pages.sql("select count(*) from pages").collect()


def test_the_tutorial_says_what_the_example_does() -> None:
    tutorial = (EXAMPLE.parents[1] / "docs" / "split-feeds.md").read_text(encoding="utf-8")
    for words in ("def discover(self", 'listing = "/listing?from=0"', "return list(self.discover())"):
        assert words in tutorial
        assert words in EXAMPLE.read_text(encoding="utf-8")
