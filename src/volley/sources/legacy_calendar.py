# SPDX-License-Identifier: Apache-2.0
"""Refuses dates of files that Spark 2, or a later one in its legacy mode, wrote in the old calendar.

Spark converts them when it reads such a file; pyarrow does not. The two calendars agree on what is not old.
"""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import TableNotSupported

# Dates differ before 1582, and times before 1900, whose zones had other offsets.
_SAME_SINCE = datetime.date(1900, 1, 1)


def refuse_old_times(values: pa.Array, where: str) -> None:
    """Raise TableNotSupported if there are dates or times before 1900, or if nested values may have some."""
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        since = pa.scalar(_SAME_SINCE).cast(pa.timestamp("us")).cast(values.type)
        if pc.any(pc.less(values, since)).as_py():
            raise TableNotSupported(f"{where}: dates before 1900 in the legacy calendar of Spark 2")
    elif _has_times(values.type):
        raise TableNotSupported(f"{where}: nested dates that may be in the legacy calendar of Spark 2")


def _has_times(kind: pa.DataType) -> bool:
    return (
        pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or any(_has_times(kind.field(place).type) for place in range(kind.num_fields))
    )
