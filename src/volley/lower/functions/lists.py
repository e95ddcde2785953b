# SPDX-License-Identifier: Apache-2.0
"""Building blocks of functions over arrays: runs of elements, by where each starts and how long it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.semantics import ExactnessError, Kernel, kernel
from volley.plan.expressions import Call
from volley.plan.types import to_arrow

MOST_ELEMENTS = 2**31 - 1
"""Of one batch."""


def list_kernel(call: Call, function: Kernel, arguments: list[Expr], detail: object = "") -> Expr:
    """`function` over the arguments, each in exactly the type that Spark gave it."""
    types = [to_arrow(argument.type) for argument in call.arguments]
    result = to_arrow(call.type)
    name = f"{call.function}_{detail}_{result}_{'_'.join(map(str, types))}"
    return kernel(name, function, result, *types)(*arguments)


def find_runs(arrays: pa.Array) -> tuple[Any, Any, Any]:
    """Where the elements of each array start in `arrays.values`, how many they are, and which arrays are not NULL."""
    offsets = arrays.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets), is_present(arrays)


def is_present(values: pa.Array) -> Any:
    return pc.is_valid(values).to_numpy(zero_copy_only=False).copy()


def as_longs(values: pa.Array) -> Any:
    """As longs, 0 for NULL."""
    return values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def places_of(starts: Any, counts: Any) -> Any:
    """All places of runs, one run after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


def offsets_for(counts: Any) -> Any:
    offsets = np.concatenate(([0], np.cumsum(counts)))
    if offsets[-1] > MOST_ELEMENTS:
        raise ExactnessError("more elements than one batch can hold")
    return offsets.astype(np.int32)


def runs(wanted: pa.ListType, values: pa.Array, starts: Any, counts: Any, present: Any) -> pa.Array:
    counts = np.where(present, counts, 0)
    return make_list(wanted, offsets_for(counts), values.take(pa.array(places_of(starts, counts))), present)


def make_list(wanted: pa.ListType, offsets: Any, values: pa.Array, present: Any | None) -> pa.Array:
    mask = None if present is None or present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), as_type(values, wanted.value_type), type=wanted, mask=mask
    )


def as_type(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)
