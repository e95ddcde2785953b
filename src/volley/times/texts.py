# SPDX-License-Identifier: Apache-2.0
"""Dates and times as texts: written and read a column at a time, as a table of bytes with a row for each value.

Writing is exact for the years from 1 to 9999, and fails beyond. Reading is exact for texts of the full width of a
pattern; Spark's code reads the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from volley.times.patterns import FORMATTED, Part, read_pattern
from volley.times.units import MICROS_A_DAY, MICROS_A_SECOND

_FIRST = -62_135_596_800 * MICROS_A_SECOND
_LAST = 253_402_300_800 * MICROS_A_SECOND - 1
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_ZERO = ord("0")
_DAY = read_pattern("yyyy-MM-dd", FORMATTED) or ()
SECOND = read_pattern("yyyy-MM-dd HH:mm:ss", FORMATTED) or ()
"""The form of a timestamp that is cast to text, up to its fraction."""


# ----------------------------------------------------------------------------------------------- writing


class _Clock:
    """The fields of local times."""

    def __init__(self, micros: Any) -> None:
        self.days, self.micros = np.divmod(micros, MICROS_A_DAY)
        months = self.days.astype("datetime64[D]").astype("datetime64[M]")
        self.day = self.days - months.astype("datetime64[D]").astype(np.int64) + 1
        years, month = np.divmod(months.astype(np.int64), 12)
        self.year, self.month = years + 1970, month + 1
        seconds, self.fraction = np.divmod(self.micros, MICROS_A_SECOND)
        seconds = seconds.astype(np.int32)
        minutes, self.second = np.divmod(seconds, 60)
        self.hour, self.minute = np.divmod(minutes, 60)


@dataclass(frozen=True)
class _Number:
    """A field of `width` digits, or of as many as it needs."""

    value: Callable[[_Clock], Any]
    width: int
    padded: bool = True

    def columns(self, clock: _Clock) -> Iterator[tuple[Any, Any]]:
        # Divisions of short numbers are faster.
        value = self.value(clock).astype(np.uint32)
        for place in reversed(range(self.width)):
            shown = True if self.padded or place == 0 else value >= 10**place
            yield value // 10**place % 10 + _ZERO, shown


@dataclass(frozen=True)
class _Name:
    """A field of names of one width."""

    value: Callable[[_Clock], Any]
    names: tuple[str, ...]

    def columns(self, clock: _Clock) -> Iterator[tuple[Any, Any]]:
        value = self.value(clock)
        for letters in zip(*self.names, strict=True):
            yield np.array([ord(letter) for letter in letters])[value], True


_WRITTEN: dict[str, _Number | _Name] = {
    "yyyy": _Number(lambda clock: clock.year, 4),
    "yy": _Number(lambda clock: clock.year % 100, 2),
    "MM": _Number(lambda clock: clock.month, 2),
    "dd": _Number(lambda clock: clock.day, 2),
    "HH": _Number(lambda clock: clock.hour, 2),
    "hh": _Number(lambda clock: (clock.hour + 11) % 12 + 1, 2),
    "mm": _Number(lambda clock: clock.minute, 2),
    "ss": _Number(lambda clock: clock.second, 2),
    "M": _Number(lambda clock: clock.month, 2, padded=False),
    "d": _Number(lambda clock: clock.day, 2, padded=False),
    "H": _Number(lambda clock: clock.hour, 2, padded=False),
    "h": _Number(lambda clock: (clock.hour + 11) % 12 + 1, 2, padded=False),
    "m": _Number(lambda clock: clock.minute, 2, padded=False),
    "s": _Number(lambda clock: clock.second, 2, padded=False),
    "a": _Name(lambda clock: clock.hour // 12, ("AM", "PM")),
    "MMM": _Name(lambda clock: clock.month - 1, tuple(_MONTHS)),
    # The epoch was a Thursday.
    **dict.fromkeys(("E", "EEE"), _Name(lambda clock: (clock.days + 3) % 7, tuple(_DAYS))),
}


def _fraction(digits: int) -> _Number:
    return _Number(lambda clock: clock.fraction // 10 ** (6 - digits), digits)


def write(micros: Any, present: Any, parts: Sequence[Part], *, with_fraction: bool = False) -> pa.Array:
    """Local times as texts of these parts; `with_fraction` appends a fraction of a second, without zeros at its end."""
    micros = np.where(present, micros, 0)
    if len(micros) and (micros.min() < _FIRST or micros.max() > _LAST):
        raise OverflowError("a year before 1 or after 9999")
    clock = _Clock(micros)
    columns: list[tuple[Any, Any]] = []
    for text, is_field in parts:
        if not is_field:
            columns += [(ord(letter), True) for letter in text]
        else:
            field = _fraction(len(text)) if text[0] == "S" else _WRITTEN[text]
            columns += field.columns(clock)
    if with_fraction and np.any(clock.fraction):
        columns.append((ord("."), clock.fraction > 0))
        for place, (digit, _) in enumerate(_fraction(6).columns(clock)):
            columns.append((digit, clock.fraction % 10 ** (6 - place) > 0))
    table = np.empty((len(micros), len(columns)), np.uint8)
    for place, (letters, _) in enumerate(columns):
        table[:, place] = letters
    if all(shown is True for _, shown in columns):
        return _texts(table.reshape(-1), np.full(len(micros), len(columns)), present)
    kept = np.empty(table.shape, np.bool_)
    for place, (_, shown) in enumerate(columns):
        kept[:, place] = shown
    return _texts(table[kept], kept.sum(axis=1), present)


def _texts(letters: Any, sizes: Any, present: Any) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    if offsets[-1] > 2**31 - 1:
        raise OverflowError("more text than one batch can hold")
    validity = None if present.all() else pa.array(present).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), len(sizes), buffers)


# ----------------------------------------------------------------------------------------------- reading


class _Table:
    """The first bytes of texts, 0 behind their ends."""

    def __init__(self, texts: pa.Array, width: int) -> None:
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        self.sizes = np.diff(offsets)
        data = texts.buffers()[2]
        letters = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        size = int(self.sizes[0]) if len(self.sizes) else 0
        if 0 < size <= width and np.all(self.sizes == size):
            self.letters = np.zeros((len(texts), width), np.uint8)
            self.letters[:, :size] = letters[offsets[0] : offsets[-1]].reshape(-1, size)
        elif not len(letters):
            self.letters = np.zeros((len(texts), width), np.uint8)
        else:
            places = offsets[:-1, None] + np.arange(width)
            inside = np.arange(width) < self.sizes[:, None]
            self.letters = np.where(inside, letters[np.minimum(places, len(letters) - 1)], 0)
        self.plain = np.ones(len(texts), np.bool_)
        """Whether all that has been read of a text was what it should be."""

    def number(self, start: int, width: int) -> Any:
        value = np.zeros(len(self.letters), np.int32)
        for place in range(start, start + width):
            # Below 0 they wrap.
            digit = self.letters[:, place] - np.uint8(_ZERO)
            self.plain &= digit <= 9
            value = value * 10 + digit
        return value.astype(np.int64)

    def skip(self, start: int, text: str) -> None:
        for place, letter in enumerate(text, start):
            self.plain &= self.letters[:, place] == ord(letter)

    def month_name(self, start: int) -> Any:
        value = np.zeros(len(self.letters), np.int64)
        for number, name in enumerate(_MONTHS, 1):
            same = np.ones(len(self.letters), np.bool_)
            for place, letter in enumerate(name, start):
                same &= self.letters[:, place] == ord(letter)
            value[same] = number
        return value

    def local(self, fields: dict[str, Any]) -> Any:
        """Microseconds from the fields y, M, d, H, m, s and S, which is in microseconds, where they are in range."""
        year, month = fields["y"], fields["M"]
        day, hour, minute, second = fields.get("d", 1), *(fields.get(name, 0) for name in "Hms")
        self.plain &= (year >= 1) & (month >= 1) & (month <= 12)
        months = np.where(self.plain, (year - 1970) * 12 + month - 1, 0)
        first, after = (
            (months + add).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for add in (0, 1)
        )
        self.plain &= (day >= 1) & (day <= after - first)
        self.plain &= (hour <= 23) & (minute <= 59) & (second <= 59)
        seconds = (first + day - 1) * 86_400 + hour * 3600 + minute * 60 + second
        return np.where(self.plain, seconds * MICROS_A_SECOND + fields.get("S", 0), 0)


def read(texts: pa.Array, parts: Sequence[Part]) -> tuple[Any, Any]:
    """The local times that texts of these parts say, and which texts are such."""
    table = _Table(texts, sum(len(text) for text, _ in parts))
    table.plain &= table.sizes == table.letters.shape[1]
    fields: dict[str, Any] = {}
    at = 0
    for text, is_field in parts:
        width = len(text)
        if not is_field:
            table.skip(at, text)
        elif text == "MMM":
            fields["M"] = table.month_name(at)
        else:
            scale = 10 ** (6 - width) if text[0] == "S" else 1
            fields[text[0]] = table.number(at, width) * scale
        at += width
    return table.local(fields), table.plain


def read_cast(texts: pa.Array) -> tuple[Any, Any, Any]:
    """The local times of texts such as `2020-01-01`, `2020-01-01 12:30:00` or `2020-01-01T12:30:00.25Z`.

    The other values are which texts are such, and which of them end with Z.
    """
    table = _Table(texts, 27)
    if len(texts) and np.all(table.sizes == 10):
        # Usual columns have one form.
        return *read(texts, _DAY), np.zeros(len(texts), np.bool_)
    if len(texts) and np.all(table.sizes == 19) and np.all(table.letters[:, 10] == ord(" ")):
        return *read(texts, SECOND), np.zeros(len(texts), np.bool_)
    rows = np.arange(len(texts))
    sizes = np.minimum(table.sizes, 27)
    zulu = (sizes > 19) & (table.letters[rows, np.maximum(sizes - 1, 0)] == ord("Z"))
    sizes = sizes - zulu
    only_day = sizes == 10
    fields = {"y": table.number(0, 4), "M": table.number(5, 2), "d": table.number(8, 2)}
    table.skip(4, "-")
    table.skip(7, "-")
    day_is_plain = table.plain.copy()
    fields |= {"H": table.number(11, 2), "m": table.number(14, 2), "s": table.number(17, 2)}
    table.skip(13, ":")
    table.skip(16, ":")
    table.plain &= (table.letters[:, 10] == ord(" ")) | (table.letters[:, 10] == ord("T"))
    fields["S"] = np.zeros(len(texts), np.int64)
    for place in range(20, 26):
        digit, inside = table.letters[:, place] - np.uint8(_ZERO), place < sizes
        table.plain &= ~inside | (digit <= 9)
        fields["S"] = fields["S"] * 10 + np.where(inside, digit, 0)
    has_fraction = (sizes >= 21) & (sizes <= 26) & (table.letters[:, 19] == ord("."))
    table.plain &= ((sizes == 19) | has_fraction) & (table.sizes <= 27)
    table.plain = np.where(only_day, day_is_plain, table.plain)
    for name in "HmsS":
        fields[name] = np.where(only_day, 0, fields[name])
    return table.local(fields), table.plain, zulu
