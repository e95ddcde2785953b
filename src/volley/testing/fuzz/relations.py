# SPDX-License-Identifier: Apache-2.0
"""Relations, which random queries are made of, and what every step that makes one needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from volley.testing.fuzz.aggregates import draw_call
from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.grammar import NESTED_KEYS, NUMBERS, ORDERABLE, SORTABLE, Expressions
from volley.testing.fuzz.tables import Column, Table

JOINS = ("join", "left join", "right join", "full join", "left semi join", "left anti join", "cross join")


@dataclass(frozen=True)
class Relation:
    """What may stand in a FROM, and its columns."""

    text: str
    columns: tuple[Column, ...]

    def of(self, *kinds: str) -> list[Column]:
        return [column for column in self.columns if column.kind in kinds]


@dataclass(frozen=True)
class Query:
    text: str
    columns: tuple[Column, ...]
    ordered: bool = False


class Builder(ABC):
    """Draws what steps have in common: keys, orders, join conditions and select lists."""

    def __init__(self, choices: Choices, tables: Sequence[Table], rare_percent: int = 4) -> None:
        self._choices = choices
        self._tables = tables
        self._rare_percent = rare_percent
        self._names = 0

    @abstractmethod
    def relation(self, depth: int) -> Relation:
        """A random relation of at most so many steps."""

    def _join_condition(self, left: Relation, right: Relation) -> str:
        kinds = (*ORDERABLE, *NESTED_KEYS) if self._choices.percent(15) else ORDERABLE
        pairs = [
            (one, other)
            for one in left.columns
            for other in right.columns
            if one.kind == other.kind and one.kind in kinds
        ]
        mixed = [(one, other) for one in left.of(*NUMBERS) for other in right.of(*NUMBERS)]
        if self._choices.percent(10) and mixed:
            pairs = mixed
        if not pairs or self._choices.percent(6):
            return self._choices.pick(["true", "1 = 1", "false"])
        signs = ["="] if not self._choices.percent(25) else ["=", "<=>", "<", ">="]
        chosen = self._choices.some(pairs, 1, 2)
        return " and ".join(f"{a.name} {self._choices.pick(signs)} {b.name}" for a, b in chosen)

    def _call(self, child: Relation, window: bool = False) -> tuple[str, str]:
        return draw_call(self._choices, self._expressions(child), window=window)

    def _pair(self, left: Relation, right: Relation) -> tuple[Column, Column] | None:
        pairs = [
            (one, other)
            for one in left.columns
            for other in right.columns
            if one.kind == other.kind and one.kind in ORDERABLE
        ]
        return self._choices.pick(pairs) if pairs else None

    def _order(self, columns: Sequence[Column], *, total: bool) -> str:
        """Sort keys; `total`: all columns, so that equal rows are the same row. Empty if that cannot be."""
        usable = [c for c in columns if c.kind in SORTABLE]
        if (total and len(usable) < len(columns)) or not usable:
            return ""
        chosen = self._choices.some(usable, len(usable) if total else 1, len(usable) if total else 2)
        ways = ("", " desc", " desc nulls first", " asc nulls last")
        return ", ".join(f"{c.name}{self._choices.pick(ways)}" for c in chosen)

    def _kept(self, child: Relation, most: int, least: int = 0) -> tuple[list[str], list[Column]]:
        kept = self._choices.some(child.columns, least, most)
        return [column.name for column in kept], kept

    def _joined(self, left: Relation, right: Relation, text: str, hint: str = "") -> Relation:
        columns = (*left.columns, *right.columns)
        kept = self._choices.some(columns, 1, 8)
        return self._select(hint + ", ".join(column.name for column in kept), text, kept)

    def _select(self, items: str, source: str, columns: Sequence[Column]) -> Relation:
        return Relation(f"(select {items} from {source}) {self._name('r')}", tuple(columns))

    def _pass(self, child: Relation, source: str) -> Relation:
        return self._select(", ".join(column.name for column in child.columns), source, child.columns)

    def _expressions(self, relation: Relation) -> Expressions:
        return Expressions(self._choices, relation.columns, self._rare_percent)

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"
