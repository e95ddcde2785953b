# SPDX-License-Identifier: Apache-2.0
"""The values of all groups in one array, group after group, as the kernels of list aggregates need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.plan.expressions import SortKey


@dataclass(frozen=True)
class GroupedValues:
    """`values[start : start + count]` are those of a group, for each of `starts` and `counts`."""

    columns: tuple[pa.Array, ...]
    groups: Any
    """The group of each value: ascending."""
    size: int
    """How many groups there are. Some may have no values."""

    @cached_property
    def counts(self) -> Any:
        return np.bincount(self.groups, minlength=self.size)

    @cached_property
    def starts(self) -> Any:
        return np.concatenate(([0], np.cumsum(self.counts)))[:-1].astype(np.int64)

    @property
    def present(self) -> Any:
        """Which groups have values."""
        return self.counts > 0

    def take(self, places: Any) -> GroupedValues:
        """The values at these places, which must be ascending by group."""
        taken = pa.array(places)
        return GroupedValues(
            tuple(column.take(taken) for column in self.columns), self.groups[places], self.size
        )

    def keep(self, mask: Any) -> GroupedValues:
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def sums(self, numbers: Any) -> Any:
        """The sum of these numbers, one for each value, by group."""
        return np.bincount(self.groups, weights=numbers, minlength=self.size)

    def lists(self, wanted: pa.ListType, *, empty_is_null: bool = False) -> pa.ListArray:
        """The first column as a list for each group; an empty one, or NULL, where a group has no values."""
        offsets = np.concatenate(([0], np.cumsum(self.counts))).astype(np.int32)
        (values, *_) = self.columns
        if values.type != wanted.value_type:
            values = values.cast(wanted.value_type)
        nulls = pa.array(~self.present) if empty_is_null else None
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=wanted, mask=nulls)


def group_values(lists: pa.ListArray, is_row: bool) -> GroupedValues:
    """The elements of these lists, or columns of their fields if `is_row`. A NULL list is a group without values."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    values = lists.flatten()
    columns = tuple(values.flatten()) if is_row else (values,)
    return GroupedValues(columns, np.repeat(np.arange(len(lists)), counts), len(lists))


def drop_nulls(grouped: GroupedValues, columns: Sequence[int] | None = None) -> GroupedValues:
    """Without the values that are NULL in one of these columns; in any column if none are named."""
    wanted = range(len(grouped.columns)) if columns is None else columns
    masks = [valid(grouped.columns[column]) for column in wanted]
    return grouped.keep(np.logical_and.reduce(masks))


def sort(grouped: GroupedValues, keys: Sequence[tuple[pa.Array, bool, bool]]) -> GroupedValues:
    """Sorted within groups by keys of (values, ascending, nulls first). Stable."""
    codes = [order_codes(*key) for key in keys]
    return grouped.take(np.lexsort((*reversed(codes), grouped.groups)))


def sort_by(grouped: GroupedValues, order: Sequence[SortKey]) -> GroupedValues:
    """Sorted by the last columns, which are the sort keys."""
    if not order:
        return grouped
    keys = zip(grouped.columns[-len(order) :], order, strict=True)
    return sort(grouped, [(values, key.ascending, key.nulls_first) for values, key in keys])


def order_codes(values: pa.Array, ascending: bool = True, nulls_first: bool = True) -> Any:
    """Numbers in the order of these values, equal for equal ones. NaN is the largest number, and -0.0 is 0.0."""
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(values.type):
        return _struct_codes(values, ascending, nulls_first)
    found = valid(values)
    codes = np.zeros(len(values), np.int64)
    present = values.filter(pa.array(found))
    ranks = pc.rank(present, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    codes[found] = ranks if ascending else -ranks
    codes[~found] = -len(values) - 1 if nulls_first else len(values) + 1
    return codes


def _struct_codes(values: pa.Array, ascending: bool, nulls_first: bool) -> Any:
    """Structs are ordered by their fields, one after the other, in which NULL is the smallest value."""
    fields = [order_codes(field, ascending, ascending) for field in values.flatten()]
    found = valid(values)
    order = np.lexsort((*reversed(fields), found if nulls_first else ~found))
    table = np.stack([found, *fields], axis=1)[order]
    codes = np.empty(len(values), np.int64)
    differs = np.any(table[1:] != table[:-1], axis=1)
    codes[order] = np.concatenate(([0], np.cumsum(differs))) if len(values) else 0
    return codes


def valid(values: pa.Array) -> Any:
    return pc.is_valid(values).to_numpy(zero_copy_only=False)


def floats(values: pa.Array) -> Any:
    return values.to_numpy(zero_copy_only=False).astype(np.float64)


Finish = Callable[[GroupedValues], pa.Array]
"""From the values of all groups to one result for each."""
