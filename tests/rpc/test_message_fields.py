# SPDX-License-Identifier: Apache-2.0
"""Whatever a peer sends in any field of any message: it is refused, or it is what the annotation says."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

from volley.errors import QueryError
from volley.field_types import NOT_SENT, AtMost, Between, Matches
from volley.plan.expressions import Expression
from volley.plan.nodes import Node, StoredColumn
from volley.plan.types import LONG, DataType
from volley.rpc.codec import decode, encode, field_hints, message_classes
from volley.rpc.handshake import Hello, Identity, Welcome, read_hello, read_welcome, to_json
from volley.testing.contracts import NUMBER, numbers

# Plans, expressions, types and columns contain themselves: below this depth they are a leaf.
DEPTH = 3
LEAVES: dict[Any, Any] = {
    Node: numbers(1),
    Expression: NUMBER,
    DataType: LONG,
    StoredColumn: StoredColumn("n", 1),
}
MESSAGES_OF_A_CLASS = 4
HANDSHAKES = 300


def draw(hint: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value that a field with this annotation may have."""
    if depth >= DEPTH and hint in LEAVES:
        return LEAVES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _draw_limited(arguments[0], hint.__metadata__[0], chance, depth)
    if origin in (Union, UnionType):
        return draw(chance.choice(arguments), chance, depth)
    if origin is tuple:
        each = arguments[:1] * chance.randrange(3) if arguments[1:] == (Ellipsis,) else arguments
        return tuple(draw(argument, chance, depth + 1) for argument in each)
    if hint in SIMPLE:
        return SIMPLE[hint](chance)
    if issubclass(hint, Enum):
        return chance.choice(list(hint))
    return draw_message(hint, chance, depth + 1)


def draw_message(kind: type, chance: random.Random, depth: int = 0) -> Any:
    return kind(**{name: draw(hint, chance, depth) for name, hint in own_hints(kind).items()})


def own_hints(kind: Any) -> dict[str, Any]:
    hints = field_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if NOT_SENT not in field.metadata}


def _draw_limited(kind: Any, limit: Any, chance: random.Random, depth: int) -> Any:
    match limit:
        case Between(low, high) if kind is int:
            return chance.choice([int(low), int(high), chance.randint(int(low), int(high))])
        case Between(low, high):
            return chance.uniform(low, high)
        case Matches(pattern):
            fitting = [text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)]
            return chance.choice(fitting)
        case AtMost():
            return draw(kind, chance, depth)
    raise AssertionError(limit)


TEXTS = [
    "",
    "0",
    "a1",
    "none",
    "lz4",
    "127.0.0.1:7070",
    "driver 7 on here",
    "deadbeef",
    "x" * 64,
    "0f" * 32,
    "\n",
    "../..",
    "é",
]
SIMPLE: dict[Any, Callable[[random.Random], Any]] = {
    type(None): lambda chance: None,
    bool: lambda chance: chance.random() < 0.5,
    int: lambda chance: chance.choice([0, -1, 7, 2**63, -(2**70)]),
    float: lambda chance: chance.choice([0.0, -1.5, math.inf, chance.random()]),
    str: lambda chance: chance.choice(TEXTS),
    bytes: lambda chance: chance.randbytes(chance.randrange(9)),
    Decimal: lambda chance: chance.choice([Decimal(0), Decimal("-1.20"), Decimal(10) ** 37]),
}

# What JSON can hold, and what our form of it gives a meaning to.
HOSTILE: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        -1.0,
        2**31 + 1,
        2**63,
        2**64,
        10**400,
        -1e12,
        math.nan,
        math.inf,
        -math.inf,
    ),
    *TEXTS,
    *("x" * 65, "x" * 600, "x" * 10_000, "a\nb", "\0", "\ud800"),
    *(
        [],
        [[]],
        [None],
        [1] * 20_000,
        {},
        {"a": 1},
        {"version": 1, "message": 1},
        [{"version": 1, "message": 1}],
    ),
    *({"$bytes": "AAAA"}, {"$bytes": 1}, {"$decimal": "NaN"}, {"$decimal": "sNaN"}, {"$decimal": "Infinity"}),
    *(
        {"$enum": "Failure", "value": "cancelled"},
        {"$enum": "QueryId", "value": "x"},
        {"$enum": [], "value": []},
    ),
    *({"$": kind.__name__} for kind in message_classes()),
    *({"$": kind.__name__, "value": {}} for kind in message_classes()),
]


def fits(value: Any, hint: Any) -> bool:
    """What the annotation promises, said in another way than the codec's."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, arguments[0]) and _keeps(value, hint.__metadata__[0])
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is tuple:
        each = arguments[:1] * len(value) if arguments[1:] == (Ellipsis,) else arguments
        return isinstance(value, tuple) and all(
            fits(item, argument) for item, argument in zip(value, each, strict=True)
        )
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _keeps(value: Any, limit: Any) -> bool:
    match limit:
        case Between(low, high):
            return math.isfinite(value) and low <= value <= high
        case Matches(pattern):
            return bool(re.fullmatch(pattern, value, re.ASCII))
        case AtMost(length):
            return len(value) <= length
    raise AssertionError(limit)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in paths(item, (*path, key)))]


def replace_at(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace_at(value[path[0]], path[1:], by)
    return copy


@pytest.mark.parametrize("kind", message_classes(), ids=lambda kind: kind.__name__)
def test_every_message(kind: type) -> None:
    for number in range(MESSAGES_OF_A_CLASS):
        chance = random.Random(f"{kind.__name__} {number}")
        message = draw_message(kind, chance)
        assert decode(encode(message)) == message
        envelope = json.loads(encode(message))
        # Every place of the message, and for each a few of the values that do not belong there.
        for path in paths(envelope)[:50]:
            sent = json.dumps(replace_at(envelope, path, chance.choice(HOSTILE))).encode()
            try:
                arrived = decode(sent)
            except QueryError:
                continue
            # It may be a key of a dictionary: one that is not hashable would break its owner.
            hash(arrived)
            if isinstance(arrived, kind):
                wrong = [
                    name for name, hint in own_hints(kind).items() if not fits(getattr(arrived, name), hint)
                ]
                assert not wrong, arrived


@pytest.mark.parametrize("kind", [Hello, Welcome])
def test_the_handshake(kind: type[Hello | Welcome]) -> None:
    for number in range(HANDSHAKES):
        chance = random.Random(number)
        words = json.loads(to_json(draw_message(kind, chance)))
        sent = json.dumps(replace_at(words, chance.choice(paths(words)), chance.choice(HOSTILE))).encode()
        try:
            arrived: Any = read_hello(sent) if kind is Hello else read_welcome(sent)
        except QueryError:
            continue
        for part in (arrived, arrived.identity) if arrived else ():
            assert isinstance(part, kind | Identity)
            hash(part)
            assert all(fits(getattr(part, name), hint) for name, hint in own_hints(type(part)).items()), part
