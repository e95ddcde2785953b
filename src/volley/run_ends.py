# SPDX-License-Identifier: Apache-2.0
"""Finds the ends of runs of adjacent rows that are equal, as in run-end encoding."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def find_run_ends(columns: Iterable[pa.Array], rows: int) -> list[int]:
    """The ends of the runs of adjacent rows that are equal in all `columns`. NULL is equal to NULL."""
    ends = {rows} - {0}
    for column in columns:
        # Values are numbered first: run_end_encode also compares what is stored below NULLs, which may be anything.
        numbers = column.dictionary_encode(null_encoding="encode").indices
        ends.update(pc.run_end_encode(numbers).run_ends.to_pylist())
    return sorted(ends)
