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


def encode(message: Any) -> bytes:
    """The message, with its version in front."""
    return json.dumps({"version": messages.PROTOCOL_VERSION, "message": _plain(message)}).encode()


def decode(payload: bytes) -> Any:
    """What `encode` was given; QueryError for another version and for anything that is not a message."""
    try:
        envelope = json.loads(payload)
        version = envelope["version"]
        if version == messages.PROTOCOL_VERSION:
            return _message(envelope["message"])
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        # Whoever reads this has threads that live on messages: what a peer sends must not end them.
        raise QueryError(
            f"a peer sent {len(payload)} bytes that are no message: {error!r}.",
            hint="Install the same version of Volley on both sides.",
        ) from error
    raise QueryError(
        f"a peer speaks protocol {version}, this side speaks {messages.PROTOCOL_VERSION}.",
        hint="Install the same version of Volley on both sides.",
    )


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return {"$enum": type(value).__name__, "value": value.value}
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"$decimal": str(value)}
        case tuple():
            return [_plain(item) for item in value]
        case _ if _CLASSES.get(type(value).__name__) is type(value) and is_dataclass(value):
            return {"$": type(value).__name__} | {
                field.name: _plain(getattr(value, field.name)) for field in fields(value)
            }
        case _:
            raise TypeError(f"{type(value).__name__} is not part of any message")


def _message(value: Any) -> Any:
    match value:
        case list():
            return tuple(_message(item) for item in value)
        case {"$bytes": text}:
            return base64.b64decode(text, validate=True)
        case {"$decimal": text}:
            return Decimal(text)
        case {"$enum": name, "value": member}:
            return _class(name)(member)
        case {"$": name}:
            return _class(name)(**{str(key): _message(value[key]) for key in value if key != "$"})
        case _:
            return value


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
