# SPDX-License-Identifier: Apache-2.0
"""A source in two steps, in forty lines: an HTTP API whose listing has to be paged through before all of it is known.

    GET /listing?from=0   ->  {"pages": ["/pages/0", "/pages/1"], "next": "/listing?from=2"}
    GET /pages/0          ->  {"rows": [{"id": 0, "name": "a"}, ...]}

It is an ordinary data source of PySpark and needs nothing of Volley. On plain Spark the whole listing is read before
the first page. Under Volley pages are read while the listing goes on, because the reader offers `discover`.

    spark.dataSource.register(PagedApi)
    spark.read.format("paged_api").option("url", "http://127.0.0.1:8000").load().show()
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


class PagedApi(DataSource):
    @classmethod
    def name(cls) -> str:
        return "paged_api"

    def schema(self) -> str:
        return "id bigint, name string"

    def reader(self, schema: Any) -> PagedReader:
        return PagedReader(self.options["url"])


class PagedReader(DataSourceReader):
    def __init__(self, url: str) -> None:
        self._url = url

    def discover(self) -> Iterator[InputPartition]:
        """The pages, one by one, as the listing names them."""
        listing = "/listing?from=0"
        while listing:
            answer = self._get(listing)
            yield from map(InputPartition, answer["pages"])
            listing = answer["next"]

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark reads a source that has no partitions once, without one.
        if partition.value is not None:
            yield pa.RecordBatch.from_pylist(self._get(partition.value)["rows"], schema=COLUMNS)

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=30) as answer:
            return json.load(answer)
