# SPDX-License-Identifier: Apache-2.0
"""A data source for tests. Its options make discovery slow, endless, faulty or stuck.

splits       number of splits; "endless" for an unlimited number
rows         rows per split; the ids over all splits are 0, 1, 2, ...
pause        seconds between two splits
raise_after  discovery fails after this many splits
hang_after   discovery hangs after this many splits, until it is closed
garbage      what discovery yields instead of a partition: "object"
tail         the declared sizes of splits have a heavy tail
follow       discovery continues only when a reader has begun the previous split; needs `calls`
wait_for     readers of the splits from `wait_from` on wait until this file exists
row_pause    seconds to read each split
size_pause   seconds to read each split, per byte of its declared size
calls        a directory in which discovery creates a file `found-<n>` for every split, and `closed`
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

_LOOK_SECONDS = 0.005


@dataclass
class NumbersPartition(InputPartition):
    """Ids from `start` on."""

    split: int
    start: int
    rows: int
    size_bytes: int | None = None


class Numbers(DataSource):
    protocol_version = 1

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id bigint, split bigint, pid bigint"

    def reader(self, schema: StructType) -> NumbersReader:
        return NumbersReader(dict(self.options))


class NumbersReader(DataSourceReader):
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        # Created by discovery: Spark pickles readers, and an event cannot be pickled.
        self._closed: threading.Event | None = None

    def _number(self, name: str, default: int) -> int:
        return int(self._options.get(name, default))

    def discover(self) -> Iterator[InputPartition]:
        closed = self._closed = threading.Event()
        splits = self._options.get("splits", "10")
        rows = self._number("rows", 10)
        pause = float(self._options.get("pause", 0))
        for split in count() if splits == "endless" else range(int(splits)):
            if split == self._number("raise_after", -1):
                raise OSError(f"the listing failed after {split} splits")
            if split == self._number("hang_after", -1):
                closed.wait()
                return
            if self._options.get("garbage") == "object":
                yield object()  # type: ignore[misc]  # a faulty source
            # Every tenth split is ten times as large, every hundredth a hundred times.
            size = (
                (100 if split % 100 == 0 else 10 if split % 10 == 0 else 1)
                if "tail" in self._options
                else None
            )
            self._leave(f"found-{split}")
            yield NumbersPartition(split, split * rows, rows, size)
            if pause:
                closed.wait(pause)
            while "follow" in self._options and not self._begun(split) and not closed.is_set():
                closed.wait(_LOOK_SECONDS)

    def partitions(self) -> list[InputPartition]:
        found = list(self.discover())
        self._closed = None
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, NumbersPartition):
            return
        self._leave(f"reading-{partition.split}-{os.getpid()}")
        gate = self._options.get("wait_for")
        if gate and partition.split >= self._number("wait_from", 0):
            while not Path(gate).exists():
                time.sleep(_LOOK_SECONDS)
        time.sleep(float(self._options.get("row_pause", 0)))
        time.sleep(float(self._options.get("size_pause", 0)) * (partition.size_bytes or 0))
        ids = range(partition.start, partition.start + partition.rows)
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array(ids, pa.int64()),
                "split": pa.array([partition.split] * partition.rows, pa.int64()),
                "pid": pa.array([os.getpid()] * partition.rows, pa.int64()),
            }
        )

    def close(self) -> None:
        """Called when no more splits are needed."""
        if self._closed is not None:
            self._closed.set()
        self._leave("closed")

    def _begun(self, split: int) -> bool:
        return any(Path(self._options["calls"]).glob(f"reading-{split}-*"))

    def _leave(self, name: str) -> None:
        if "calls" in self._options:
            (Path(self._options["calls"]) / name).touch()
