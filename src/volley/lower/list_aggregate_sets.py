# SPDX-License-Identifier: Apache-2.0
"""The distinct values of a group: as a set, the most frequent of them, or about how many there are.

A set is in the order in which Scala's hash set iterates: by bucket, and within a bucket by hash.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from volley.lower.grouped_values import Finish, GroupedValues, drop_nulls, order_codes
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import AggregateCall, Call
from volley.plan.types import to_arrow

# -------------------------------------------------------------------------------------------- collect_set


# A larger set may be in a table of another size, depending on how it was put together from those of partitions.
_FIRST_TABLE = 11


def collect_set(call: AggregateCall, is_unordered: bool) -> Finish:
    """The set in Spark's order, unless the query does not show it."""
    wanted = to_arrow(call.type)

    def finish(grouped: GroupedValues) -> pa.Array:
        distinct = _distinct(drop_nulls(grouped))
        if not is_unordered and np.any(distinct.counts > _FIRST_TABLE):
            raise ExactnessError("a set whose order depends on Spark's partitions")
        hashes = _java_hashes(distinct.columns[0])
        improved = (hashes ^ (hashes >> np.uint32(16))).astype(np.uint32)
        buckets = improved & (_table_sizes(distinct.counts)[distinct.groups] - 1).astype(np.uint32)
        order = np.lexsort((improved.view(np.int32), buckets, distinct.groups))
        ordered = distinct.take(order)
        same = (ordered.groups[1:] == ordered.groups[:-1]) & (improved[order][1:] == improved[order][:-1])
        if np.any(same):
            raise ExactnessError("two values with the same hash: their order depends on that of the rows")
        return ordered.lists(wanted)

    return finish


def _distinct(grouped: GroupedValues) -> GroupedValues:
    codes = order_codes(grouped.columns[0])
    order = np.lexsort((codes, grouped.groups))
    groups, sorted_codes = grouped.groups[order], codes[order]
    first = np.ones(len(order), bool)
    first[1:] = (groups[1:] != groups[:-1]) | (sorted_codes[1:] != sorted_codes[:-1])
    return grouped.take(order[first])


def _table_sizes(counts: Any) -> Any:
    """The size of Scala's table: it doubles from 16 so that three quarters of it are never full."""
    sizes = np.full(len(counts), 16, np.int64)
    while np.any(full := counts >= sizes * 3 // 4):
        sizes[full] *= 2
    return sizes


def _java_hashes(values: pa.Array) -> Any:
    """`hashCode` as Scala calls it: of a number its int, of a text Murmur3."""
    kind = values.type
    if pa.types.is_string(kind):
        return _murmur3(values)
    if pa.types.is_boolean(kind):
        return np.where(values.to_numpy(zero_copy_only=False), 1231, 1237).astype(np.uint32)
    if pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
    low, high = numbers.astype(np.uint32), (numbers >> 32).astype(np.uint32)
    fits = numbers == numbers.astype(np.int32)
    return np.where(fits, low, low ^ high).astype(np.uint32)


_SEED = 42


def _murmur3(texts: pa.Array) -> Any:
    """Spark's hash of a text: whole words of four bytes, then each byte that is left as a word of its own."""
    binary = texts.cast(pa.binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int32)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    hashes = np.full(len(binary), _SEED, np.uint32)
    words = lengths // 4
    for place in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > place)
        at = starts[rows] + 4 * place
        word = sum(data[at + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
        hashes[rows] = _mix(hashes[rows], word)
    for place in range(3):
        rows = np.flatnonzero(lengths - 4 * words > place)
        byte = data[starts[rows] + 4 * words[rows] + place].astype(np.int8)
        hashes[rows] = _mix(hashes[rows], byte.astype(np.int32).view(np.uint32))
    return _finish_hash(hashes ^ lengths.astype(np.uint32))


def _finish_hash(hashes: Any) -> Any:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = hashes ^ (hashes >> np.uint32(shift))
        hashes = hashes * np.uint32(factor)
    return hashes


def _mix(hashes: Any, word: Any) -> Any:
    mixed = _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotate(numbers: Any, bits: int) -> Any:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))


# --------------------------------------------------------------------------------------------------- mode


def mode(call: AggregateCall) -> Finish:
    """The most frequent value. Of several, the smallest or largest if the query says which; otherwise the first one in
    Spark's hash table."""
    smallest = call.function.option("reverseOpt")

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        (values,) = present.columns
        codes = order_codes(values)
        order = np.lexsort((codes, present.groups))
        groups, sorted_codes = present.groups[order], codes[order]
        first = np.ones(len(order), bool)
        first[1:] = (groups[1:] != groups[:-1]) | (sorted_codes[1:] != sorted_codes[:-1])
        places = np.flatnonzero(first)
        frequencies = np.diff(np.append(places, len(order)))
        owners = groups[places]
        best = np.zeros(present.size, np.int64)
        np.maximum.at(best, owners, frequencies)
        winners = np.flatnonzero(frequencies == best[owners])
        kept = winners[::-1] if smallest is True else winners
        if smallest is None and len(winners) != np.count_nonzero(present.present):
            slots = _table_slots(values.take(pa.array(order[places])), owners, owners[winners])
            kept = winners[np.argsort(-slots[winners], kind="stable")]
        chosen = np.full(present.size, -1)
        # The last assignment counts.
        chosen[owners[kept]] = order[places[kept]]
        return values.take(pa.array(np.maximum(chosen, 0), mask=chosen < 0))

    return finish


def _table_slots(values: pa.Array, owners: Any, tied: Any) -> Any:
    """Where each of the distinct values of a group is in the group's `OpenHashMap`, for groups that occur twice in
    `tied`. Fails where two of them compete for a slot: then it depends on which came first.
    """
    counts = np.bincount(owners)
    sizes = np.full(len(counts), 64, np.int64)
    while np.any(full := counts > (sizes * 0.7).astype(np.int64)):
        sizes[full] *= 2
    slots = (_spread(_hash_codes(values)) & (sizes[owners] - 1).astype(np.uint32)).astype(np.int64)
    shown = np.flatnonzero((np.bincount(tied, minlength=len(counts)) > 1)[owners])
    cells = owners[shown] * sizes.max() + slots[shown]
    if len(np.unique(cells)) < len(cells):
        raise ExactnessError("several values are equally frequent")
    return slots


def _hash_codes(values: pa.Array) -> Any:
    """`hashCode` as Java calls it."""
    kind = values.type
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        numbers = values.view(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers.astype(np.uint32) ^ (numbers >> 32).astype(np.uint32)
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or kind in (pa.bool_(), pa.date32()):
        return _java_hashes(values)
    raise ExactnessError("several values are equally frequent")


def _spread(hashes: Any) -> Any:
    """Murmur3 of an int."""
    return _finish_hash(_mix(np.zeros(len(hashes), np.uint32), hashes) ^ np.uint32(4))


# ---------------------------------------------------------------------------------- approx_count_distinct

# Up to these estimates, by precision from 4, or this raw one per register, the number of empty registers counts.
_LINEAR_UP_TO = (10, 20, 40, 80, 220, 400, 900, 1800, 3100, 6500, 11500, 20000, 50000, 120000, 350000)
_LINEAR_BELOW = 2.5
# Above this share of the registers the raw estimate needs no correction.
_UNBIASED_FROM = 5
# Spark's sum of powers of two is one of ints.
_LARGEST_RANK = 30


def precision_of(call: Call) -> int:
    """How many bits of a hash choose the register."""
    relative_error = call.option("relativeSD")
    assert isinstance(relative_error, float)
    return math.ceil(2.0 * math.log(1.106 / relative_error) / math.log(2.0))


def approximate_count(call: AggregateCall) -> Finish:
    """HyperLogLog++ with Spark's hash and registers, from the hashes of a group's values.

    Between small and large numbers Spark corrects the estimate by measured biases, which capture has read from it.
    """
    bits = precision_of(call.function)
    registers = 1 << bits
    biases = _Biases(*(json.loads(str(call.function.option(name))) for name in ("estimates", "biases")))

    def finish(grouped: GroupedValues) -> pa.Array:
        hashes = grouped.columns[0].to_numpy(zero_copy_only=False).view(np.uint64)
        places = grouped.groups * registers + (hashes >> np.uint64(64 - bits)).astype(np.int64)
        ranks = _leading_zeros((hashes << np.uint64(bits)) | np.uint64(1 << (bits - 1))) + 1
        highest = np.zeros(grouped.size * registers, np.int64)
        np.maximum.at(highest, places, ranks)
        return pa.array(_estimate(highest.reshape(grouped.size, registers), bits, biases))

    return finish


@dataclass(frozen=True)
class _Biases:
    """By how much estimates are too large: the mean over the six nearest of those that were measured."""

    estimates: list[float]
    biases: list[float]

    def bias(self, estimate: float) -> float:
        count = len(self.estimates)

        def distance(place: int) -> float:
            return (estimate - self.estimates[place]) ** 2

        low = max(bisect_left(self.estimates, estimate) - _NEAREST + 1, 0)
        high = min(low + _NEAREST, count)
        while high < count and distance(high) < distance(low):
            low, high = low + 1, high + 1
        return sum(self.biases[low:high]) / (high - low)


_NEAREST = 6


def _estimate(ranks: Any, bits: int, biases: _Biases) -> Any:
    if np.any(ranks > _LARGEST_RANK):
        raise ExactnessError("a rank beyond those of Spark's ints")
    registers = 1 << bits
    factors = {4: 0.673, 5: 0.697, 6: 0.709}
    factor = factors.get(bits, 0.7213 / (1.0 + 1.079 / registers))
    raw = factor * registers * registers / np.sum(1.0 / (1 << ranks), axis=1)
    empty = np.count_nonzero(ranks == 0, axis=1)
    linear = registers * np.log(registers / np.maximum(empty, 1))
    is_small = (linear <= _LINEAR_UP_TO[bits - 4]) | (raw <= _LINEAR_BELOW * registers)
    is_linear = (empty > 0) & is_small
    for group in np.flatnonzero(~is_linear & (raw < _UNBIASED_FROM * registers)):
        raw[group] -= biases.bias(float(raw[group]))
    # Java rounds halves up.
    return np.floor(np.where(is_linear, linear, raw) + 0.5).astype(np.int64)


def _leading_zeros(numbers: Any) -> Any:
    high, low = (
        (numbers >> np.uint64(32)).astype(np.float64),
        (numbers & np.uint64(0xFFFFFFFF)).astype(np.float64),
    )
    # The exponent of a float is the number of its bits.
    return np.where(high > 0, 32 - np.frexp(high)[1], 64 - np.frexp(low)[1])
