# SPDX-License-Identifier: Apache-2.0
"""Random queries with clauses that few queries have: PIVOT, grouped expressions, windows over groups, recursion."""

from __future__ import annotations

from volley.testing.fuzz.grammar import NUMBERS, ORDERABLE, TYPE_OF
from volley.testing.fuzz.relations import JOINS, Builder, Relation
from volley.testing.fuzz.tables import Column

_PIVOTED = {"int": ("0", "1", "2", "-7"), "str": ("'a'", "''", "'é'", "'1'"), "bool": ("true", "false")}
_ODD_NAMES = ("A{}", "`a b {}`", "`é{}`", "`{}`", "`#{}`", "`sum(x#{})`", "`a.b{}`", "`select{}`", "`x``{}`")


class Clauses(Builder):
    def _group_by_expressions(self, depth: int) -> Relation:
        """Keys that are computed, by position or by name, and results that are computed from aggregates."""
        child = self.relation(depth)
        draw = self._expressions(child)
        kinds = [self._choices.pick(ORDERABLE) for _ in range(1 + self._choices.below(2))]
        keys = [draw.draw(kind, 1) for kind in kinds]
        columns = [Column(self._name("g"), TYPE_OF[kind]) for kind in kinds]
        call, type = self._call(child)
        number, _ = self._call(child)
        results = [
            (call, type),
            (f"count(*) + {self._choices.pick(['1', 'count(distinct 1)', 'sum(1)'])}", "int"),
            (f"coalesce(cast({number} as string), '-')", "string"),
        ]
        items = [f"{key} {column.name}" for key, column in zip(keys, columns, strict=True)]
        positions = ", ".join(str(place + 1) for place in range(len(keys)))
        names = ", ".join(column.name for column in columns)
        way = self._choices.pick([positions, names, ", ".join(keys), f"rollup({names})", "all"])
        if way.startswith("rollup"):
            results.append((self._choices.pick(["grouping_id()", f"grouping({columns[0].name})"]), "int"))
        for result, kind in self._choices.some(results, 1, 3):
            columns.append(Column(self._name("v"), kind))
            items.append(f"{result} {columns[-1].name}")
        having = ""
        if self._choices.percent(25):
            other = self.relation(0)
            having = self._choices.pick(
                [" having count(*) > 1", f" having count(*) >= (select min(1) from {other.text})"]
            )
        return self._select(", ".join(items), f"{child.text} group by {way}{having}", columns)

    def _window_over_groups(self, depth: int) -> Relation:
        child = self.relation(depth)
        keys = self._choices.some(child.of(*ORDERABLE), 1, 2)
        if not keys:
            return child
        columns = [Column(self._name("g"), key.type) for key in keys]
        items = [f"{key.name} {column.name}" for key, column in zip(keys, columns, strict=True)]
        names = ", ".join(key.name for key in keys)
        calls = [
            (f"rank() over (order by count(*) desc, {keys[0].name})", "int"),
            (f"sum(count(*)) over (order by {names})", "int"),
            (f"row_number() over (partition by {keys[0].name} order by {names})", "int"),
            (f"max(count(*)) over (partition by {keys[0].name})", "int"),
            (f"lag(count(*), 1, 0) over (order by {names})", "int"),
        ]
        for call, type in self._choices.some(calls, 1, 3):
            columns.append(Column(self._name("w"), type))
            items.append(f"{call} {columns[-1].name}")
        return self._select(", ".join(items), f"{child.text} group by {names}", columns)

    def _pivot(self, depth: int) -> Relation:
        child = self.relation(depth)
        keys, numbers = child.of(*_PIVOTED), child.of("int", "dec")
        if not keys or not numbers:
            return child
        key, number = self._choices.pick(keys), self._choices.pick(numbers)
        if key == number:
            return child
        group = [c for c in child.of(*ORDERABLE) if c not in (key, number)][:1]
        listed = _PIVOTED[key.kind]
        if self._choices.percent(20):
            listed = (*listed, self._choices.pick(listed))
        values = [(value, self._name("p")) for value in listed]
        calls = self._choices.pick(["sum({})", "count({})", "max({})"]).format(number.name)
        kept = ", ".join(c.name for c in (*group, key, number))
        named = ", ".join(f"{value} as {name}" for value, name in values)
        columns = [*group, *(Column(name, number.type) for _, name in values)]
        inner = f"(select {kept} from {child.text})"
        return self._select(
            ", ".join(c.name for c in columns),
            f"{inner} pivot ({calls} for {key.name} in ({named}))",
            columns,
        )

    def _unpivot(self, depth: int) -> Relation:
        child = self.relation(depth)
        kinds = [kind for kind in ORDERABLE if len(child.of(kind)) > 1]
        if not kinds:
            return child
        chosen = self._choices.some(child.of(self._choices.pick(kinds)), 2, 3)
        value, name = Column(self._name("x"), chosen[0].type), Column(self._name("n"), "string")
        columns = [*(c for c in child.columns if c not in chosen), name, value]
        nulls = self._choices.pick(["", "include nulls "])
        names = ", ".join(c.name for c in chosen)
        return self._select(
            ", ".join(c.name for c in columns),
            f"{child.text} unpivot {nulls}({value.name} for {name.name} in ({names}))",
            columns,
        )

    def _row_in_subquery(self, depth: int) -> Relation:
        """IN with several columns, with a correlated subquery, or as a value."""
        child, other = self.relation(depth), self.relation(min(depth, 1))
        pairs = [
            (one, two) for one in child.of(*ORDERABLE) for two in other.of(*ORDERABLE) if one.kind == two.kind
        ]
        if not pairs:
            return child
        chosen = self._choices.some(pairs, 1, 2)
        ours, theirs = (", ".join(pair[side].name for pair in chosen) for side in (0, 1))
        where = f" where {self._join_condition(child, other)}" if self._choices.percent(40) else ""
        word = self._choices.pick(["in", "not in"])
        test = f"({ours}) {word} (select {theirs} from {other.text}{where})"
        if self._choices.percent(25):
            column = Column(self._name("b"), "boolean")
            items, columns = self._kept(child, 4)
            made = f"case when {test} then true else false end {column.name}"
            return self._select(", ".join([*items, made]), child.text, [*columns, column])
        return self._pass(child, f"{child.text} where {test}")

    def _recursive(self, depth: int) -> Relation:
        name, column = self._name("q"), Column(self._name("n"), "int")
        start = self._choices.pick(["select 1", "select distinct k % 3 from t0 where k is not null"])
        text = (
            f"with recursive {name}({column.name}) as ({start} union all"
            f" select {column.name} + 1 from {name} where {column.name} < {3 + self._choices.below(4)})"
            f" select {column.name} from {name}"
        )
        made = Relation(f"({text}) {self._name('r')}", (column,))
        if depth <= 0:
            return made
        other = self.relation(depth)
        return self._joined(
            made, other, f"{made.text} {JOINS[1]} {other.text} on {self._join_condition(made, other)}"
        )

    def _rename(self, depth: int) -> Relation:
        """Names that need quotes, that look like others of Spark, or that are read in another case."""
        child = self.relation(depth)
        columns = [
            Column(self._choices.pick(_ODD_NAMES).format(self._name("o")), column.type)
            for column in child.columns
        ]
        items = [f"{old.name} {new.name}" for old, new in zip(child.columns, columns, strict=True)]
        if self._choices.percent(30):
            columns = [Column(c.name.swapcase(), c.type) for c in columns]
        return self._select(", ".join(items), child.text, columns)

    def _nested(self, depth: int) -> Relation:
        """Columns inside structs and arrays, and out of them again."""
        child = self.relation(depth)
        packed = self._choices.some(child.columns, 1, 3)
        inner = self._name("z")
        fields = ", ".join(f"'f{place}', {c.name}" for place, c in enumerate(packed))
        kept = [c for c in child.columns if c not in packed]
        items = [*(c.name for c in kept), f"named_struct({fields}) {inner}"]
        shape = self._choices.pick([inner, f"array({inner})[0]", f"element_at(array(null, {inner}), -1)"])
        source = f"(select {', '.join(items)} from {child.text}) {self._name('r')}"
        if self._choices.percent(40):
            # As a key, an argument or a result of a group, where equality of nested values counts.
            names = ", ".join([*(c.name for c in kept), inner])
            source = f"(select distinct {names} from {source}) {self._name('r')}"
        columns = [*kept, *(Column(self._name("a"), c.type) for c in packed)]
        unpacked = [f"{shape}.f{place} {column.name}" for place, column in enumerate(columns[len(kept) :])]
        return self._select(", ".join([*(c.name for c in kept), *unpacked]), source, columns)

    def _generate(self, depth: int) -> Relation:
        """Generators other than explode."""
        child = self.relation(depth)
        draw = self._expressions(child)
        outer = self._choices.pick(["", "outer "])
        alias, number, text = (
            self._name("r"),
            Column(self._name("i"), "int"),
            Column(self._name("t"), "string"),
        )
        one, two = draw.draw("int", 1), draw.draw("int", 1)
        made = self._choices.pick(
            [
                f"inline(array(named_struct('i', {one}, 't', {draw.draw('str', 1)}), null))",
                f"stack(2, {one}, {draw.draw('str', 1)}, {two}, {draw.leaf('str')})",
                f"explode(map(coalesce({one}, 0), {draw.draw('str', 1)}))",
                f"posexplode(split({draw.leaf('str')}, ''))",
                f"json_tuple(to_json(named_struct('a', {one}, 'b', {draw.leaf('str')})), 'a', 'b')",
            ]
        )
        kept = [*self._choices.some(child.columns, 1, 4), number, text]
        if made.startswith("json"):
            kept = [Column(c.name, "string") if c is number else c for c in kept]
        names = ", ".join(c.name for c in kept)
        return self._select(
            names, f"{child.text} lateral view {outer}{made} {alias} as {number.name}, {text.name}", kept
        )

    def _sums_of_groups(self, depth: int) -> Relation:
        """Several DISTINCT and FILTER aggregates at once, which Spark expands."""
        child = self.relation(depth)
        draw = self._expressions(child)
        keys = self._choices.some(child.of(*ORDERABLE), 0, 1)
        columns = [Column(self._name("g"), key.type) for key in keys]
        items = [f"{key.name} {column.name}" for key, column in zip(keys, columns, strict=True)]
        for _ in range(2 + self._choices.below(3)):
            values = [draw.leaf(self._choices.pick(ORDERABLE)) for _ in range(1 + self._choices.below(2))]
            kind = self._choices.pick([k for k in NUMBERS if k != "float"])
            call = self._choices.pick(
                [
                    f"count(distinct {', '.join(values)})",
                    f"sum(distinct {draw.leaf(kind)})",
                    f"max(distinct {values[0]})",
                    f"count({values[0]})",
                    f"avg({draw.leaf(kind)})",
                ]
            )
            if self._choices.percent(35):
                call += f" filter (where {draw.condition()})"
            columns.append(Column(self._name("v"), "double" if call.startswith("avg") else "int"))
            items.append(f"{call} {columns[-1].name}")
        names = ", ".join(key.name for key in keys)
        return self._select(", ".join(items), child.text + (f" group by {names}" if keys else ""), columns)
