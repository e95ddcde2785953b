# SPDX-License-Identifier: Apache-2.0
"""The 22 TPC-H queries. Spark and DataFusion run the same text."""

from __future__ import annotations

from functools import cache
from importlib import resources

from volley.errors import ConfigError

QUERIES: tuple[str, ...] = tuple(f"q{number:02}" for number in range(1, 23))


@cache
def query_text(name: str) -> str:
    return (
        resources.files("volley.bench").joinpath("tpch").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    )


def parse_queries(text: str, known: tuple[str, ...] = QUERIES) -> tuple[str, ...]:
    """Parse `q01,q05` or `1,5`, keeping the order. An empty text means all `known` queries."""
    names = [_parse_name(part.strip(), known) for part in text.split(",") if part.strip()]
    return tuple(dict.fromkeys(names)) or known


def _parse_name(text: str, known: tuple[str, ...]) -> str:
    digits = text.lower().removeprefix("q")
    name = f"q{int(digits):02}" if digits.isdecimal() else text
    if name not in known:
        raise ConfigError(f"there is no query {text!r}.", hint=f"There are {known[0]} to {known[-1]}.")
    return name
