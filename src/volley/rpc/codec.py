# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON: plain data that names its classes, and nothing that could execute when it is decoded.

    dataclass  {"$": "TaskSpec", field: value, ...}      tuple    [ ... ]
    enum       {"$enum": "Partitioning", "value": ...}   bytes    {"$bytes": base64}
    decimal    {"$decimal": "1.20"}                      others   themselves

Only the classes listed here can be named. A message of another protocol version is refused before it is decoded. Every
field is checked against its annotation, with the limits of `volley.field_types`. This is the only place where a peer's
bytes become values, so no code behind it has to check for a wrong type, a negative size or a NaN. Versions of Volley
with the same protocol version understand each other. A field that is added has a default, which means what was done
before, and fields that have their defaults are not sent: an older peer sees the new field only where it matters, and
then refuses the message. Of classes that only report, it leaves out what it does not know: fields, and classes in them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import ModuleType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from volley import ids
from volley.errors import QueryError
from volley.events import FetchMetrics, OperatorMetrics, TaskMetrics
from volley.field_types import NOT_SENT, AtMost, Between, Matches
from volley.plan import expressions, nodes, partition_nodes, python_nodes, source_nodes, types
from volley.rpc import blocks, control, messages, shuffle_messages
from volley.stages.graph import Output
from volley.storage import settings as store_settings

_MODULES: tuple[ModuleType, ...] = (
    ids,
    types,
    expressions,
    nodes,
    partition_nodes,
    python_nodes,
    source_nodes,
    blocks,
    shuffle_messages,
    messages,
    control,
    store_settings,
)
_EXTRA_CLASSES: tuple[type, ...] = (Output, FetchMetrics, OperatorMetrics, TaskMetrics)
# These only report, and no decision depends on them, so fields may be missing.
_REPORTS: frozenset[type] = frozenset(
    {FetchMetrics, OperatorMetrics, TaskMetrics, control.Health, control.Progress}
)

_VERSION = messages.PROTOCOL_VERSION

Message = TypeVar("Message")
Check = Callable[[Any], bool]


def encode(message: Any) -> bytes:
    """Encode a message, with the protocol version in front."""
    return json.dumps({"version": _VERSION, "message": _to_plain(message)}).encode()


@overload
def decode(payload: bytes, expect: type[Message]) -> Message: ...


@overload
def decode(payload: bytes) -> Any: ...


def decode(payload: bytes, expect: type | None = None) -> Any:
    """Decode a message. QueryError if the version differs, the bytes are no message or it is not an `expect`."""
    try:
        # Decode only after checking the version. The prefix is the fast path.
        if payload.startswith(_THIS_VERSION) or (version := json.loads(payload)["version"]) == _VERSION:
            message = _to_tuples(_load(payload)["message"])
            if _has_objects(message):
                raise ValueError("an object without a class")
            if expect is not None and not isinstance(message, expect):
                raise QueryError(
                    f"a peer sent {type(message).__name__} where {expect.__name__} was expected."
                )
            return message
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        # Long-lived threads decode messages: nothing that a peer sends may end them.
        raise QueryError(
            f"a peer sent {len(payload)} bytes that are not a message: {type(error).__name__}: {error}.",
            hint="Install the same version of Volley on both sides.",
        ) from error
    raise QueryError(
        f"a peer speaks protocol {version}, this side speaks {_VERSION}.",
        hint="Install the same version of Volley on both sides.",
    )


class _UnknownClass(QueryError):
    """Nothing here is called so."""


def _load(payload: bytes) -> Any:
    try:
        return json.loads(payload, object_hook=_build)
    except _UnknownClass:
        # Values are built from the inside out, before it is known that they are in a field that is left out.
        known = json.loads(payload, object_hook=_leave_out_of_report)
        return json.loads(json.dumps(known), object_hook=_build)


def _leave_out_of_report(value: dict[str, Any]) -> dict[str, Any]:
    made = _CLASSES.get(value.get("$", ""))
    return {key: value[key] for key in ("$", *_CHECKS[made]) if key in value} if made in _REPORTS else value


def _to_plain(value: Any) -> Any:
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind is tuple:
        return [_to_plain(item) for item in value]
    if kind in _CHECKS:
        plain: dict[str, Any] = {"$": kind.__name__}
        defaults = _DEFAULTS[kind]
        for name in _CHECKS[kind]:
            item = getattr(value, name)
            if not (name in defaults and _is_default(item, defaults[name])):
                plain[name] = _to_plain(item)
        return plain
    match value:
        case Enum():
            return {"$enum": kind.__name__, "value": value.value}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"$decimal": str(value)}
        case _:
            raise TypeError(f"{kind.__name__} is not part of any message")


def _is_default(value: Any, default: Any) -> bool:
    if type(value) is not type(default):
        return False
    # Zeros have signs, which their texts show.
    return repr(value) == repr(default) if type(value) is float else bool(value == default)


def _build(value: dict[str, Any]) -> Any:
    """Build the value of a JSON object whose nested objects are already built."""
    if "$" in value:
        made = _find_class(value.pop("$"), _CLASSES)
        checks = _CHECKS[made]
        if not value.keys() <= checks.keys():
            _leave_out_unknown(made, value)
        for name, item in value.items():
            if type(item) is list:
                item = value[name] = _to_tuples(item)
            if not checks[name](item):
                raise ValueError(f"{made.__name__}.{name} cannot be {item!r:.60}")
        return made(**value)
    match value:
        case {"$bytes": text}:
            return base64.b64decode(text, validate=True)
        case {"$decimal": text}:
            number = Decimal(text)
            if not number.is_finite():
                raise ValueError(f"{text} is no decimal")
            return number
        case {"$enum": name, "value": member}:
            return _find_class(name, _ENUMS)(member)
        case {"version": _, "message": _}:
            return value
        case _:
            raise ValueError("an object without a class")


def _leave_out_unknown(made: type, value: dict[str, Any]) -> None:
    unknown = value.keys() - _CHECKS[made].keys()
    if made not in _REPORTS:
        raise ValueError(f"{made.__name__}.{min(unknown)} is not known to this version of Volley")
    for name in unknown:
        del value[name]


def _has_objects(value: Any) -> bool:
    """Whether there is an envelope where a message should be. Fields of messages are checked when they are built."""
    return type(value) is dict or (type(value) is tuple and any(map(_has_objects, value)))


def _to_tuples(value: Any) -> Any:
    return tuple([_to_tuples(item) for item in value]) if type(value) is list else value


def _find_class(name: str, known: dict[str, type]) -> Any:
    if name not in known:
        raise _UnknownClass(f"a peer sent {name!r}, which is not part of any message.")
    return known[name]


# ------------------------------------------------------------------------------------------------- field checks


def _make_check(hint: Any) -> Check:
    """Build the check of a field from its annotation. TypeError for an annotation that cannot be checked."""
    if hint is Any or hint is object:
        return lambda value: True
    if hint is None or hint is NoneType:
        return lambda value: value is None
    if hint is float:
        return lambda value: type(value) is float or type(value) is int
    if hint in _JSON_TYPES:
        return lambda value: type(value) is hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        (limit,) = hint.__metadata__
        return _make_limited_check(arguments[0], limit)
    if origin is Literal:
        return lambda value: value in arguments
    if origin in (Union, UnionType):
        checks = tuple(_make_check(argument) for argument in arguments)
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        return _make_tuple_check(arguments)
    if isinstance(hint, type):
        return lambda value: type(value) is hint or isinstance(value, hint)
    raise TypeError(f"a field of a message cannot be {hint}")


def _make_tuple_check(arguments: tuple[Any, ...]) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        each = _make_check(arguments[0])
        return lambda value: type(value) is tuple and all(map(each, value))
    checks = tuple(_make_check(argument) for argument in arguments)
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _make_limited_check(kind: Any, limit: Any) -> Check:
    """A single lambda per field, for speed: a task decodes a dozen such fields for each block that it reads."""
    match kind, limit:
        case type(), Between(low, high) if kind is int:
            return lambda value: type(value) is int and low <= value <= high
        case type(), Between(low, high) if kind is float:
            # NaN fails both comparisons.
            return lambda value: (type(value) is float or type(value) is int) and low <= value <= high
        case type(), Matches(pattern) if kind is str:
            matches = re.compile(pattern, re.ASCII).fullmatch
            return lambda value: type(value) is str and matches(value) is not None
        case type(), AtMost(length) if kind is str:
            return lambda value: type(value) is str and len(value) <= length
        case _, AtMost(length) if get_origin(kind) is tuple:
            check = _make_check(kind)
            return lambda value: type(value) is tuple and len(value) <= length and check(value)
        case _:
            raise TypeError(f"a field of a message cannot be {kind} with {limit}")


def _collect_classes() -> tuple[dict[str, type], dict[str, type]]:
    """Dataclasses and enums, by their names."""
    defined = [
        member
        for module in _MODULES
        for member in vars(module).values()
        if isinstance(member, type) and member.__module__ == module.__name__
    ]
    classes: dict[str, type] = {}
    enums: dict[str, type] = {}
    for member in (*defined, *_EXTRA_CLASSES):
        if not (is_dataclass(member) or issubclass(member, Enum)):
            continue
        if member.__name__ in classes or member.__name__ in enums:
            raise TypeError(f"two message classes are called {member.__name__}")
        (classes if is_dataclass(member) else enums)[member.__name__] = member
    return classes, enums


def message_classes() -> tuple[type, ...]:
    """All classes that a message may consist of."""
    return tuple(_CLASSES.values())


def field_hints(kind: type) -> dict[str, Any]:
    """The annotations of a message class, with the limits of `volley.field_types`."""
    # Some modules import Node only for type checking, to avoid an import cycle.
    return get_type_hints(kind, localns={"Node": nodes.Node}, include_extras=True)


def field_checks(kind: type) -> dict[str, Check]:
    """For each field of a dataclass that is sent, whether it may have a value that a peer sent."""
    hints = field_hints(kind)
    return {
        field.name: _make_check(hints[field.name])
        for field in fields(cast(Any, kind))
        if NOT_SENT not in field.metadata
    }


_JSON_TYPES = frozenset({NoneType, bool, int, float, str})
_CLASSES, _ENUMS = _collect_classes()
_CHECKS = {kind: field_checks(kind) for kind in _CLASSES.values()}
_DEFAULTS = {
    kind: {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    for kind in _CLASSES.values()
}
_THIS_VERSION = b'{"version": %d, "message":' % _VERSION
