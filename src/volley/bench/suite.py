# SPDX-License-Identifier: Apache-2.0
"""A suite of queries: their texts, and where their tables are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """The chosen queries, and where to find their tables and texts. `settings` are what Spark needs to read them.

    `programs` are PySpark programs, which stand for the texts of some queries.
    """

    name: str
    queries: tuple[str, ...]
    data: Path
    tables: tuple[str, ...]
    text_of: Callable[[str], str]
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, Path] = field(default_factory=dict)
