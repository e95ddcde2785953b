# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON: plain data that names its own classes, and nothing that could run when it is read.

    dataclass  {"$": "TaskSpec", field: value, ...}      tuple    [ ... ]
    enum       {"$enum": "Partitioning", "value": ...}   bytes    {"$bytes": base64}
    decimal    {"$decimal": "1.20"}                      others   themselves

Only the classes listed here can be named. A message of another protocol version is refused before it is looked into.
"""

from __future__ import annotations

import base64
import json
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any

from volley import events, ids
from volley.errors import QueryError
from volley.plan import expressions, nodes, types
from volley.shuffle import base as shuffle
from volley.shuffle.service import messages as service
from volley.stages import graph
from volley.transport import control, messages

_MODULES: tuple[ModuleType, ...] = (
    ids,
    types,
    expressions,
    nodes,
    graph,
    shuffle,
    service,
    events,
    messages,
    control,
)


_VERSION = messages.PROTOCOL_VERSION


def encode(message: Any) -> bytes:
    """The message, with its version in front."""
    return json.dumps({"version": _VERSION, "message": _plain(message)}).encode()


def decode(payload: bytes) -> Any:
    """What `encode` was given; QueryError for another version and for anything that is not a message."""
    try:
        # Looked into only when its version is known to be this one; the quick way is to look how it begins.
        if payload.startswith(_THIS_VERSION) or (version := json.loads(payload)["version"]) == _VERSION:
            return _tuples(json.loads(payload, object_hook=_object)["message"])
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        # Whoever reads this has threads that live on messages: what a peer sends must not end them.
        raise QueryError(
            f"a peer sent {len(payload)} bytes that are no message: {error!r}.",
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
    if kind in _FIELDS:
        return {"$": kind.__name__} | {name: _plain(getattr(value, name)) for name in _FIELDS[kind]}
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
        made = _class(value.pop("$"))
        return made(**{name: _tuples(item) for name, item in value.items()})
    match value:
        case {"$bytes": text}:
            return base64.b64decode(text, validate=True)
        case {"$decimal": text}:
            return Decimal(text)
        case {"$enum": name, "value": member}:
            return _class(name)(member)
        case _:
            return value


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if type(value) is list else value


def _class(name: str) -> Any:
    if name not in _CLASSES:
        raise QueryError(f"a peer sent {name!r}, which is not part of any message.")
    return _CLASSES[name]


def _message_classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in _MODULES:
        for name, member in vars(module).items():
            if not isinstance(member, type) or member.__module__ != module.__name__:
                continue
            if is_dataclass(member) or issubclass(member, Enum):
                if name in found:
                    raise TypeError(f"two classes of messages are called {name}")
                found[name] = member
    return found


_CLASSES = _message_classes()
_FIELDS = {
    kind: tuple(field.name for field in fields(kind)) for kind in _CLASSES.values() if is_dataclass(kind)
}
_THEMSELVES = frozenset({type(None), bool, int, float, str})
_THIS_VERSION = b'{"version": %d, "message":' % _VERSION
