# SPDX-License-Identifier: Apache-2.0
"""Values as JSON that keeps their types: numbers, strings and lists as they are, others as an object with one tag."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any


def to_plain(value: Any) -> Any:
    """Convert a value to JSON. Raises TypeError for a value that has no plain form."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime.datetime():
            return {"datetime": value.isoformat()}
        case datetime.date():
            return {"date": value.isoformat()}
        case list():
            return [to_plain(item) for item in value]
        case tuple():
            return {"tuple": [to_plain(item) for item in value]}
        case dict() if all(isinstance(key, str) for key in value):
            return {"dict": {key: to_plain(item) for key, item in value.items()}}
        case _:
            raise TypeError(type(value).__name__)


def from_plain(value: Any) -> Any:
    """Restore the value that was passed to `to_plain`."""
    match value:
        case list():
            return [from_plain(item) for item in value]
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"decimal": text}:
            return Decimal(text)
        case {"datetime": text}:
            return datetime.datetime.fromisoformat(text)
        case {"date": text}:
            return datetime.date.fromisoformat(text)
        case {"tuple": items}:
            return tuple(from_plain(item) for item in items)
        case {"dict": items}:
            return {key: from_plain(item) for key, item in items.items()}
        case _:
            return value
