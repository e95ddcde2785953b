# SPDX-License-Identifier: Apache-2.0
"""Reads 64-bit Roaring bitmaps in their portable form, by the public specification of the format.

bitmap       count of parts; for each the upper 32 bits, and a 32-bit bitmap
32 bits      header, (upper 16 bits, cardinality - 1) of each container, offsets, containers
container    up to 4096 numbers of 16 bits; or 8 KiB of bits; or runs of numbers
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

_NO_RUNS = 12346
_RUNS = 12347
_MOST_LISTED = 4096
_BITS_BYTES = 8192
# Fewer containers with runs than this have no offsets.
_WITHOUT_OFFSETS = 4


def read_bitmap(data: bytes) -> Positions:
    """The numbers in a bitmap, in order. ValueError or struct.error if it is damaged."""
    (count,) = struct.unpack_from("<Q", data)
    place, found = 8, [np.empty(0, np.int64)]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, place)
        numbers, place = _read_part(data, place + 4)
        found.append(numbers + (high << 32))
    if place != len(data):
        raise ValueError("a bitmap has more bytes than its containers")
    return np.concatenate(found)


def _read_part(data: bytes, place: int) -> tuple[Positions, int]:
    (cookie,) = struct.unpack_from("<I", data, place)
    place += 4
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(data, np.uint8, -(-count // 8), place)
        has_runs = np.unpackbits(flags, bitorder="little")[:count].astype(bool)
        place += len(flags)
        has_offsets = count >= _WITHOUT_OFFSETS
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, place)
        place += 4
        has_runs = np.zeros(count, bool)
        has_offsets = True
    else:
        raise ValueError(f"{cookie} does not begin a bitmap")
    header = np.frombuffer(data, "<u2", 2 * count, place).astype(np.int64)
    place += 4 * count + (4 * count if has_offsets else 0)
    found = [np.empty(0, np.int64)]
    for high, last, is_run in zip(header[0::2], header[1::2], has_runs, strict=True):
        numbers, place = _read_container(data, place, int(last) + 1, bool(is_run))
        found.append(numbers + (int(high) << 16))
    return np.concatenate(found), place


def _read_container(data: bytes, place: int, cardinality: int, is_run: bool) -> tuple[Positions, int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, place)
        runs = np.frombuffer(data, "<u2", 2 * count, place + 2).astype(np.int64)
        starts, lengths = runs[0::2], runs[1::2] + 1
        ends = np.cumsum(lengths)
        # Each number is its place, shifted by where its run begins.
        numbers = np.arange(int(ends[-1]) if count else 0) + np.repeat(starts - (ends - lengths), lengths)
        return numbers, place + 2 + 4 * count
    if cardinality <= _MOST_LISTED:
        return np.frombuffer(data, "<u2", cardinality, place).astype(np.int64), place + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITS_BYTES, place), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), place + _BITS_BYTES
