# SPDX-License-Identifier: Apache-2.0
"""Parsers of option values. Each converts a text, or raises a ValueError that says what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text.lower()

    return parse


Number = TypeVar("Number", int, float)


def _number(
    kind: Callable[[str], Number], accepts: Callable[[Number], bool], expected: str
) -> Callable[[str], Number]:
    """A number that `accepts` holds for. The message is the same whether it is none or not in range."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if not accepts(value):
            raise ValueError(f"expected {expected}")
        return value

    return parse


def at_least(minimum: int) -> Callable[[str], int]:
    return _number(int, lambda value: value >= minimum, f"a whole number of at least {minimum}")


seconds = _number(float, lambda value: 0 < value < math.inf, "a number of seconds above 0")
days = _number(float, lambda value: 0 < value < math.inf, "a number of days above 0")
share = _number(float, lambda value: 0 < value < 1, "a number between 0 and 1")
share_or_all = _number(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")
port = _number(int, lambda value: 0 <= value < 65536, "a port, or 0 for any")


def seconds_up_to(most: int) -> Callable[[str], float]:
    return _number(float, lambda value: 0 < value <= most, f"a number of seconds above 0, up to {most}")


def optional_port(text: str) -> int | None:
    return port(text) if text else None


def parse_bytes(text: str) -> int:
    """Parse a size such as 64m or 1.5g. As in Spark, k, m, g and t are powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None or (size := int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))) < 1:
        raise ValueError("expected a size such as 64m or 2g")
    return size


def bytes_or_zero(text: str) -> int:
    return 0 if text == "0" else parse_bytes(text)


def bytes_or_auto(text: str) -> int | None:
    return None if text.lower() == "auto" else bytes_or_zero(text)
