# SPDX-License-Identifier: Apache-2.0
"""Values of rows that depend on their places in Spark's partitions, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from volley.plan.expressions import Call, Expression, Literal
from volley.plan.partition_nodes import PARTITION_BITS, PLACE, ROW_NUMBER
from volley.worker.few_groups import FewGroups
from volley.worker.normal_numbers import NormalNumbers
from volley.worker.random_numbers import RandomNumbers


class Values(Protocol):
    """The values of one function for the rows of one partition, or of several in order."""

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        """Those of the next rows."""


class _Numbers:
    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        first, self._next = self._next, self._next + rows.num_rows
        return pa.array(np.arange(first, self._next, dtype=np.int64))


class _PlacesInGroups:
    """Numbers of rows whose groups are those that Spark aggregates in order."""

    def __init__(self, numbers: _Numbers, groups: FewGroups) -> None:
        self._numbers = numbers
        self._groups = groups

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        self._groups.check(rows)
        return self._numbers.take(rows)


class _Constant:
    def __init__(self, value: int) -> None:
        self._value = pa.scalar(value, pa.int32())

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.repeat(self._value, rows.num_rows)


class _Random:
    def __init__(self, seed: int) -> None:
        self._numbers = RandomNumbers(seed)

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.array(self._numbers.doubles(rows.num_rows))


class _Normal:
    def __init__(self, seed: int) -> None:
        self._numbers = NormalNumbers(seed)

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.array(self._numbers.doubles(rows.num_rows))


class _Texts:
    """Texts of random digits and letters."""

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._numbers = RandomNumbers(seed)

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        # The sign of a remainder is that of the number in Java.
        places = np.abs(self._numbers.integers(rows.num_rows * self._length)) % len(_CHARACTERS)
        ends = np.arange(rows.num_rows + 1, dtype=np.int32) * self._length
        return pa.Array.from_buffers(
            pa.string(), rows.num_rows, [None, pa.py_buffer(ends), pa.py_buffer(_CHARACTERS[places])]
        )


_CHARACTERS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", dtype=np.uint8)


class _Uuids:
    """Random identifiers of version 4, from a Mersenne twister."""

    def __init__(self, seed: int) -> None:
        words = [(seed >> 32) & _WORD, seed & _WORD]
        self._generator = np.random.RandomState(np.array(words, dtype=np.uint32))

    def take(self, rows: pa.RecordBatch) -> pa.Array:
        words = self._generator.randint(0, 1 << 32, size=(rows.num_rows, 4), dtype=np.uint32)
        words[:, 1] = words[:, 1] & 0xFFFF0FFF | 0x4000
        words[:, 2] = words[:, 2] & 0x3FFFFFFF | 0x80000000
        digits = _HEX[words.astype(">u4").view(np.uint8)].view(np.uint8)
        text = np.full((len(words), _UUID_LENGTH), ord("-"), dtype=np.uint8)
        for place, (first, end) in enumerate(_UUID_PARTS):
            text[:, first + place : end + place] = digits[:, first:end]
        ends = np.arange(0, (len(words) + 1) * _UUID_LENGTH, _UUID_LENGTH, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(ends), pa.py_buffer(text)])


_WORD = (1 << 32) - 1
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint16)
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
_UUID_LENGTH = 36


def _constant(call: Call, position: int = 0) -> int:
    match call.arguments[position]:
        case Literal(int() | None as value, _):
            return value or 0
        case _:
            raise TypeError(f"{call.function} has an argument that is not constant")


def _option(call: Call, name: str) -> int:
    value = call.option(name)
    if not isinstance(value, int):
        raise TypeError(f"{call.function} has no seed")
    return value


_FUNCTIONS: dict[str, Callable[[Call, int], Values]] = {
    "MonotonicallyIncreasingID": lambda call, partition: _Numbers(partition << PARTITION_BITS),
    "SparkPartitionID": lambda call, partition: _Constant(partition),
    "Uuid": lambda call, partition: _Uuids(_option(call, "randomSeed") + partition),
    "Rand": lambda call, partition: _Random(_constant(call) + partition),
    "Randn": lambda call, partition: _Normal(_constant(call) + partition),
    "RandStr": lambda call, partition: _Texts(_constant(call), _constant(call, 1) + partition),
}


class PartitionValues:
    """The values of several functions, for partitions of which the rows come in order.

    Row numbers go on from one partition to the next: those must come in order, too.
    """

    def __init__(self, functions: tuple[Expression, ...]) -> None:
        self._calls = [function for function in functions if isinstance(function, Call)]
        self._row_numbers = [_Numbers(0) for _ in self._calls]
        self._groups = [FewGroups(call) if call.function == PLACE else None for call in self._calls]

    def begin(self, partition: int) -> list[Values]:
        return [self._begin(place, partition) for place in range(len(self._calls))]

    def _begin(self, place: int, partition: int) -> Values:
        call, groups = self._calls[place], self._groups[place]
        if call.function == ROW_NUMBER:
            return self._row_numbers[place]
        if groups is not None:
            return _PlacesInGroups(_Numbers(partition << PARTITION_BITS), groups)
        return _FUNCTIONS[call.function](call, partition)
