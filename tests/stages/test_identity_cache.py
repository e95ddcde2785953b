# SPDX-License-Identifier: Apache-2.0
"""What was found about an object is found once, and forgotten with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from volley.identity_cache import once_per_object


@dataclass(frozen=True)
class Subject:
    value: float


def test_an_object_is_asked_once_and_forgotten() -> None:
    asked: list[float] = []

    @once_per_object
    def find(subject: Subject, factor: int = 1) -> float:
        asked.append(subject.value)
        return subject.value * factor

    zero, negative = Subject(0.0), Subject(-0.0)
    assert zero == negative
    assert str(find(zero)) == str(find(zero)) == "0.0"
    assert str(find(negative)) == "-0.0"
    assert find(Subject(2.0), 3) == 6.0
    assert find(Subject(2.0), 4) == 8.0
    assert asked == [0.0, -0.0, 2.0, 2.0]
    # Another object may have the identity of one that is gone.
    gc.collect()
    for number in range(100):
        assert find(Subject(float(number))) == number
