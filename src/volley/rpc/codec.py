# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON: plain data that names its own classes, and nothing that could run when it is read.

    dataclass  {"$": "TaskSpec", field: value, ...}      tuple    [ ... ]
    enum       {"$enum": "Partitioning", "value": ...}   bytes    {"$bytes": base64}
    decimal    {"$decimal": "1.20"}                      others   themselves

Only the classes listed here can be named. A message of another protocol version is refused before it is looked into.
Every field of a message is checked against its annotation, with the limits of `volley.fields`: this is the one place
where what a peer sends becomes a value, so nobody behind it has to doubt a type, a sign or a NaN.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from volley import ids
from volley.errors import QueryError
from volley.events import OperatorMetrics, TaskMetrics
from volley.fields import Between, Matches
from volley.plan import expressions, nodes, types
from volley.rpc import blocks, control, messages, service
from volley.stages.graph import Output

_MODULES: tuple[ModuleType, ...] = (
    ids,
    types,
    expressions,
    nodes,
    blocks,
    service,
    messages,
    control,
)
_FURTHER: tuple[type, ...] = (Output, OperatorMetrics, TaskMetrics)

_VERSION = messages.PROTOCOL_VERSION

Message = TypeVar("Message")
Check = Callable[[Any], bool]


def encode(message: Any) -> bytes:
    """The message, with its version in front."""
    return json.dumps({"version": _VERSION, "message": _plain(message)}).encode()


@overload
def decode(payload: bytes, expect: type[Message]) -> Message: ...


@overload
def decode(payload: bytes) -> Any: ...


def decode(payload: bytes, expect: type | None = None) -> Any:
    """What `encode` was given; QueryError for another version, for what is no message, and unless it is an `expect`."""
    try:
        # Looked into only when its version is known to be this one; the quick way is to look how it begins.
        if payload.startswith(_THIS_VERSION) or (version := json.loads(payload)["version"]) == _VERSION:
            message = _tuples(json.loads(payload, object_hook=_object)["message"])
            if expect is not None and not isinstance(message, expect):
                raise QueryError(
                    f"a peer sent {type(message).__name__} where {expect.__name__} was expected."
                )
            return message
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        # Whoever reads this has threads that live on messages: what a peer sends must not end them.
        raise QueryError(
            f"a peer sent {len(payload)} bytes that are no message: {type(error).__name__}: {error}.",
            hint="Install the same version of Volley on both sides.",
        ) from error
    raise QueryError(
        f"a peer speaks protocol {version}, this side speaks {_VERSION}.",
        hint="Install the same version of Volley on both sides.",
    )


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _THEMSELVES:
        return value
    if kind is tuple:
        return [_plain(item) for item in value]
    if kind in _CHECKS:
        return {"$": kind.__name__} | {name: _plain(getattr(value, name)) for name in _CHECKS[kind]}
    match value:
        case Enum():
            return {"$enum": kind.__name__, "value": value.value}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"$decimal": str(value)}
        case _:
            raise TypeError(f"{kind.__name__} is not part of any message")


def _object(value: dict[str, Any]) -> Any:
    """A JSON object, of which those inside are made already."""
    if "$" in value:
        made = _class(value.pop("$"), _CLASSES)
        checks = _CHECKS[made]
        for name, item in value.items():
            if type(item) is list:
                item = value[name] = _tuples(item)
            if not checks[name](item):  # no such field is a KeyError
                raise ValueError(f"{made.__name__}.{name} cannot be {item!r:.60}")
        return made(**value)
    match value:
        case {"$bytes": text}:
            return base64.b64decode(text, validate=True)
        case {"$decimal": text}:
            return Decimal(text)
        case {"$enum": name, "value": member}:
            return _class(name, _ENUMS)(member)
        case _:
            return value


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if type(value) is list else value


def _class(name: str, known: dict[str, type]) -> Any:
    if name not in known:
        raise QueryError(f"a peer sent {name!r}, which is not part of any message.")
    return known[name]


# ------------------------------------------------------------------------------------------- what a field may hold


def _check(hint: Any) -> Check:
    """Whether a value may stand where this is annotated. TypeError for an annotation that cannot be checked."""
    if hint is Any or hint is object:
        return lambda value: True
    if hint is None or hint is NoneType:
        return lambda value: value is None
    if hint is float:
        return lambda value: type(value) is float or type(value) is int
    if hint in _THEMSELVES:
        return lambda value: type(value) is hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        (limit,) = hint.__metadata__
        return _limited(arguments[0], limit)
    if origin is Literal:
        return lambda value: value in arguments
    if origin in (Union, UnionType):
        checks = tuple(_check(argument) for argument in arguments)
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        return _check_of_tuple(arguments)
    if isinstance(hint, type):
        return lambda value: type(value) is hint or isinstance(value, hint)
    raise TypeError(f"a field of a message cannot be {hint}")


def _check_of_tuple(arguments: tuple[Any, ...]) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        each = _check(arguments[0])
        return lambda value: type(value) is tuple and all(map(each, value))
    checks = tuple(_check(argument) for argument in arguments)
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _limited(kind: Any, limit: Any) -> Check:
    """One call for a field: these are most of what is checked, a dozen for each block that a task reads."""
    match kind, limit:
        case type(), Between(low, high) if kind is int:
            return lambda value: type(value) is int and low <= value <= high
        case type(), Between(low, high) if kind is float:
            # NaN is between nothing.
            return lambda value: (type(value) is float or type(value) is int) and low <= value <= high
        case type(), Matches(pattern) if kind is str:
            matches = re.compile(pattern, re.ASCII).fullmatch
            return lambda value: type(value) is str and matches(value) is not None
        case _:
            raise TypeError(f"a field of a message cannot be {kind} with {limit}")


def _message_classes() -> tuple[dict[str, type], dict[str, type]]:
    """Dataclasses and enums, by their names."""
    defined = [
        member
        for module in _MODULES
        for member in vars(module).values()
        if isinstance(member, type) and member.__module__ == module.__name__
    ]
    classes: dict[str, type] = {}
    enums: dict[str, type] = {}
    for member in (*defined, *_FURTHER):
        if not (is_dataclass(member) or issubclass(member, Enum)):
            continue
        if member.__name__ in classes or member.__name__ in enums:
            raise TypeError(f"two classes of messages are called {member.__name__}")
        (classes if is_dataclass(member) else enums)[member.__name__] = member
    return classes, enums


def _checks_of(kind: Any) -> dict[str, Check]:
    # The tree's base is imported for annotations alone where modules would otherwise import each other.
    hints = get_type_hints(kind, localns={"Node": nodes.Node}, include_extras=True)
    return {field.name: _check(hints[field.name]) for field in fields(kind)}


_THEMSELVES = frozenset({NoneType, bool, int, float, str})
_CLASSES, _ENUMS = _message_classes()
_CHECKS = {kind: _checks_of(kind) for kind in _CLASSES.values()}
_THIS_VERSION = b'{"version": %d, "message":' % _VERSION
