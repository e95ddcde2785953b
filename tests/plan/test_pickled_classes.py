# SPDX-License-Identifier: Apache-2.0
"""Whether a method of a pickled class uses its object is read from its code, which is not run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

from volley.plan.pickled_classes import methods_use_object


def plain() -> type:
    class Plain:
        def eval(self, *values: int, **named: int) -> Iterator[Any]:
            for value in [value + 1 for value in values]:
                yield value, sorted(named.items())

    return Plain


def counting() -> type:
    class Counting:
        count = 0

        def eval(self, value: int) -> Iterator[int]:
            self.count += 1
            yield self.count

    return Counting


def collecting() -> type:
    class Collecting:
        seen: list[int] = []  # noqa: RUF012  # shared by all objects

        def eval(self, value: int) -> Iterator[int]:
            self.seen.append(value)
            yield len(self.seen)

    return Collecting


def enclosing() -> type:
    class Enclosing:
        def eval(self, value: int) -> Iterator[Any]:
            yield (lambda: self)()

    return Enclosing


def derived() -> type:
    class Derived(counting()):  # type: ignore[misc]  # made at run time
        def eval(self, value: int) -> Iterator[int]:
            yield from super().eval(value)

    return Derived


def without() -> type:
    class Without:
        pass

    return Without


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (plain, False),
        (counting, True),
        (collecting, True),
        (enclosing, True),
        (derived, True),
        (without, True),
    ],
)
def test_eval(make: Any, found: bool) -> None:
    pickled = cloudpickle.dumps((make(), "a int"))  # type: ignore[no-untyped-call]  # it has no types
    assert methods_use_object(pickled, "eval") is found


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


def test_nothing_is_run() -> None:
    assert methods_use_object(cloudpickle.dumps(Harmful()), "eval")  # type: ignore[no-untyped-call]


def test_what_cannot_be_read_shows_nothing() -> None:
    assert methods_use_object(b"no pickle", "eval")
