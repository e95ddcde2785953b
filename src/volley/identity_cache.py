# SPDX-License-Identifier: Apache-2.0
"""Remembers what was found about immutable objects, such as plans: repeated queries run the same objects again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Concatenate, ParamSpec, TypeVar

Subject = TypeVar("Subject")
Options = ParamSpec("Options")
Value = TypeVar("Value")


def once_per_object(
    find: Callable[Concatenate[Subject, Options], Value],
) -> Callable[Concatenate[Subject, Options], Value]:
    """Call `find` once for each object, told apart by identity, and for each tuple of the hashable other arguments.

    Not by value: comparing a plan costs as much as reading it, and in Python `-0.0 == 0.0`. The object is not kept
    alive, and what was found is forgotten with it, so the value must not reference it.
    """
    found: dict[int, tuple[weakref.ref[Subject], dict[Hashable, Value]]] = {}

    def remembered(subject: Subject, /, *args: Options.args, **kwargs: Options.kwargs) -> Value:
        number = id(subject)
        entry = found.get(number)
        if entry is None or entry[0]() is not subject:
            # The reference is cleared before another object can have this identity.
            reference = weakref.ref(subject, lambda _: found.pop(number, None))
            entry = found[number] = (reference, {})
        key = (args, tuple(sorted(kwargs.items())))
        if key not in entry[1]:
            entry[1][key] = find(subject, *args, **kwargs)
        return entry[1][key]

    return remembered
