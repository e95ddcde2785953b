# SPDX-License-Identifier: Apache-2.0
"""Random queries over random tables.

Every query has one answer: a LIMIT, a row number or a frame of rows comes with an order over all columns of its input.
Columns get new names at every step, so that no reference is ambiguous.
"""

from __future__ import annotations

from volley.testing.fuzz.clauses import Clauses
from volley.testing.fuzz.grammar import NESTED_KEYS, ORDERABLE, TYPE_OF
from volley.testing.fuzz.relations import JOINS, Query, Relation
from volley.testing.fuzz.tables import Column


class Queries(Clauses):
    def draw(self) -> Query:
        """A whole query, sometimes with an ORDER BY on top."""
        choices = self._choices
        relation = self.relation(2)
        if choices.percent(12):
            relation, prefix = self._cte(relation)
        else:
            prefix = ""
        names = [column.name for column in relation.columns]
        if choices.percent(6):
            names.append(choices.pick(names))
        text = f"{prefix}select {', '.join(names)} from {relation.text}"
        if choices.percent(25) and (order := self._order(relation.columns, total=False)):
            return Query(f"{text} order by {order}", relation.columns, ordered=True)
        return Query(text, relation.columns)

    def relation(self, depth: int) -> Relation:
        if depth <= 0:
            return self._leaf()
        step = self._choices.weighted(
            (
                (3, self._project),
                (3, self._filter),
                (5, self._join),
                (5, self._aggregate),
                (4, self._window),
                (3, self._set_operation),
                (2, self._distinct),
                (3, self._limit),
                (3, self._subquery_filter),
                (2, self._scalar_subquery),
                (2, self._lateral),
                (1, self._using),
                (1, self._hint),
                (1, self._self_join),
                (1, self._constants),
                (2, self._explode),
                (2, self._group_by_expressions),
                (1, self._window_over_groups),
                (1, self._pivot),
                (1, self._unpivot),
                (2, self._row_in_subquery),
                (1, self._recursive),
                (1, self._rename),
                (2, self._nested),
                (1, self._generate),
                (1, self._sums_of_groups),
            )
        )
        return step(depth - 1)

    # ------------------------------------------------------------------------------------------ steps

    def _leaf(self) -> Relation:
        table = self._choices.pick(self._tables)
        alias = self._name("r")
        kept = self._choices.some(table.columns, 2, 6)
        columns = [Column(self._name("a"), column.type) for column in kept]
        select = ", ".join(f"{old.name} {new.name}" for old, new in zip(kept, columns, strict=True))
        return Relation(f"(select {select} from {table.name}) {alias}", tuple(columns))

    def _project(self, depth: int) -> Relation:
        child = self.relation(depth)
        draw = self._expressions(child)
        items, columns = self._kept(child, 3)
        for _ in range(1 + self._choices.below(6)):
            kind = draw.any_kind()
            column = Column(self._name("e"), TYPE_OF.get(kind, "int"))
            items.append(f"{draw.draw(kind)} {column.name}")
            columns.append(column)
        return self._select(", ".join(items), child.text, columns)

    def _filter(self, depth: int) -> Relation:
        child = self.relation(depth)
        return self._pass(child, f"{child.text} where {self._expressions(child).condition()}")

    def _distinct(self, depth: int) -> Relation:
        child = self.relation(depth)
        items, columns = self._kept(child, 3, 1)
        return self._select("distinct " + ", ".join(items), child.text, columns)

    def _limit(self, depth: int) -> Relation:
        child = self.relation(depth)
        order = self._order(child.columns, total=True)
        if not order:
            return child
        offset = f" offset {self._choices.below(4)}" if self._choices.percent(25) else ""
        limit = f" limit {self._choices.pick([3, 1, 0, 5, 10])}"
        return self._pass(child, f"{child.text} order by {order}{limit}{offset}")

    def _join(self, depth: int) -> Relation:
        left, right = self.relation(depth), self.relation(min(depth, 1))
        kind = self._choices.pick(JOINS)
        if kind == "cross join":
            return self._joined(left, right, f"{left.text} cross join {right.text}")
        hint = self._choices.weighted(
            ((6, ""), (1, "broadcast"), (1, "merge"), (1, "shuffle_hash"), (1, "shuffle_replicate_nl"))
        )
        both = Relation("", (*left.columns, *right.columns))
        on = self._join_condition(left, right)
        if self._choices.percent(25):
            on += f" and {self._expressions(both).condition()}"
        text = f"{left.text} {kind} {right.text} on {on}"
        if kind in ("left semi join", "left anti join"):
            return self._pass(left, text)
        alias = right.text.rpartition(" ")[2]
        return self._joined(left, right, text, f"/*+ {hint}({alias}) */ " if hint else "")

    def _using(self, depth: int) -> Relation:
        """Keys of the same name, with and without the column that USING makes of both."""
        left, right = self.relation(depth), self.relation(0)
        pairs = [
            (one, other)
            for one in left.of("int", "str", "date")
            for other in right.of("int", "str", "date")
            if one.kind == other.kind
        ]
        if not pairs:
            return left
        one, other = self._choices.pick(pairs)
        name = self._name("u")
        sides = []
        for side, key in ((left, one), (right, other)):
            kept = ", ".join(c.name if c != key else f"{c.name} {name}" for c in side.columns)
            sides.append(f"(select {kept} from {side.text}) {self._name('r')}")
        kind = self._choices.pick(JOINS[:4])
        rest = [c for c in (*left.columns, *right.columns) if c not in (one, other)]
        columns = [Column(name, one.type), *rest]
        select = ", ".join(c.name for c in columns)
        return self._select(select, f"{sides[0]} {kind} {sides[1]} using ({name})", columns)

    def _self_join(self, depth: int) -> Relation:
        child = self.relation(depth)
        one, other = self._name("r"), self._name("r")
        keys = child.of(*ORDERABLE)
        if not keys:
            return child
        key = self._choices.pick(keys).name
        body = child.text[: child.text.rindex(")") + 1]
        columns = [Column(self._name("a"), c.type) for c in child.columns]
        sides = [self._choices.pick([one, other]) for _ in columns]
        select = ", ".join(
            f"{side}.{old.name} {new.name}"
            for side, old, new in zip(sides, child.columns, columns, strict=True)
        )
        kind = self._choices.pick(JOINS[:4])
        return self._select(
            select, f"{body} {one} {kind} {body} {other} on {one}.{key} = {other}.{key}", columns
        )

    def _aggregate(self, depth: int) -> Relation:
        child = self.relation(depth)
        kinds = (*ORDERABLE, *NESTED_KEYS) if self._choices.percent(20) else ORDERABLE
        keys = self._choices.some(child.of(*kinds), 0, 3)
        shapes = ["{}", "rollup({})", "cube({})", "grouping sets (({}), ())"] if keys else [""]
        shape = shapes[0] if not self._choices.percent(25) else self._choices.pick(shapes)
        columns = [Column(self._name("g"), key.type) for key in keys]
        items = [f"{key.name} {column.name}" for key, column in zip(keys, columns, strict=True)]
        for _ in range(self._choices.below(6) + (not keys)):
            call, type = self._call(child)
            columns.append(Column(self._name("v"), type))
            items.append(f"{call} {columns[-1].name}")
        names = ", ".join(key.name for key in keys)
        text = child.text + (f" group by {shape.format(names)}" if keys else "")
        if self._choices.percent(12):
            text += f" having {self._choices.pick(['count(*) > 1', 'max(1) = 1', 'count(*) is not null'])}"
        return self._select(", ".join(items), text, columns)

    def _explode(self, depth: int) -> Relation:
        child = self.relation(depth)
        draw = self._expressions(child)
        word = self._choices.pick(["lateral view", "lateral view outer"])
        position, column = Column(self._name("p"), "int"), Column(self._name("x"), "int")
        if self._choices.percent(40):
            made = f"posexplode({draw.draw('arr', 1)}) {self._name('r')} as {position.name}, {column.name}"
            added = [position, column]
        else:
            made = f"explode({draw.draw('arr', 1)}) {self._name('r')} as {column.name}"
            added = [column]
        kept = [*self._choices.some(child.columns, 1, 5), *added]
        return self._select(", ".join(c.name for c in kept), f"{child.text} {word} {made}", kept)

    def _window(self, depth: int) -> Relation:
        child = self.relation(depth)
        items, columns = self._kept(child, 4, 1)
        for _ in range(1 + self._choices.below(4)):
            call, type = self._window_call(child)
            columns.append(Column(self._name("w"), type))
            items.append(f"{call} {columns[-1].name}")
        if self._choices.percent(15) and child.of(*ORDERABLE):
            inner = self._select(", ".join(items), child.text, columns)
            return self._pass(inner, f"{inner.text} where {columns[-1].name} = 1") if type == "int" else inner
        return self._select(", ".join(items), child.text, columns)

    def _window_call(self, child: Relation) -> tuple[str, str]:
        choices = self._choices
        keys = choices.some(child.of(*ORDERABLE), 0, 2)
        partition = f"partition by {', '.join(key.name for key in keys)} " if keys else ""
        total = self._order(child.columns, total=True)
        some = self._order(child.columns, total=False)
        column = choices.pick(child.columns)
        bounds = [
            "unbounded preceding",
            "2 preceding",
            "1 preceding",
            "current row",
            "1 following",
            "unbounded following",
        ]
        start = choices.below(4)
        end = start + 1 + choices.below(len(bounds) - start - 1)
        frame = f"between {bounds[start]} and {bounds[end]}"
        shape = choices.weighted(
            ((4, "plain"), (3, "rows"), (2, "range"), (4, "rank"), (4, "position"), (2, "whole"))
        )
        call, type = self._call(child, window=True)
        if not total and shape != "whole":
            shape = "whole"
        match shape:
            case "rank":
                name = choices.pick(["rank()", "dense_rank()", "percent_rank()", "cume_dist()"])
                kind = "int" if "rank()" in name and "percent" not in name else "double"
                return f"{name} over ({partition}order by {some})", kind
            case "position":
                nulls = choices.pick(["", "", " ignore nulls"])
                name = choices.pick(
                    [
                        "row_number()",
                        f"ntile({1 + choices.below(3)})",
                        f"lag({column.name}){nulls}",
                        f"lead({column.name}, 2)",
                        f"lead({column.name}){nulls}",
                        f"first_value({column.name}){nulls}",
                        f"last_value({column.name}){nulls}",
                        f"nth_value({column.name}, 2){nulls}",
                        f"lag({column.name}, 1, {column.name})",
                    ]
                )
                return (
                    f"{name} over ({partition}order by {total})",
                    "int" if name.startswith(("row", "ntile")) else column.type,
                )
            case "rows":
                return f"{call} over ({partition}order by {total} rows {frame})", type
            case "range":
                key = choices.pick(child.of("int", "date", "dec", "float", "ts") or [None])
                if key is None:
                    return f"{call} over ({partition}order by {total})", type
                if key.kind == "ts":
                    frame = frame.replace("1 ", "interval 1 day ").replace("2 ", "interval 2 hour ")
                way = choices.pick(["", " desc", " nulls last", " desc nulls first"])
                return f"{call} over ({partition}order by {key.name}{way} range {frame})", type
            case "whole":
                return f"{call} over ({partition.strip()})", type
            case _:
                return f"{call} over ({partition}order by {some})", type

    def _set_operation(self, depth: int) -> Relation:
        left, right = self.relation(depth), self.relation(min(depth, 1))
        pairs = []
        taken: set[Column] = set()
        for one in left.columns:
            other = next((c for c in right.columns if c.kind == one.kind and c not in taken), None)
            if other is not None and one.kind not in ("other", "map"):
                taken.add(other)
                pairs.append((one, other))
        if not pairs:
            return left
        word = self._choices.pick(
            ["union all", "union", "intersect", "except", "intersect all", "except all", "union all"]
        )
        ours = ", ".join(one.name for one, _ in pairs)
        theirs = ", ".join(other.name for _, other in pairs)
        text = f"(select {ours} from {left.text} {word} select {theirs} from {right.text}) {self._name('r')}"
        return Relation(text, tuple(one for one, _ in pairs))

    def _subquery_filter(self, depth: int) -> Relation:
        child, other = self.relation(depth), self.relation(min(depth, 1))
        both = Relation("", (*child.columns, *other.columns))
        match self._choices.pick(["exists", "not exists", "in", "not in", "or exists", "scalar"]):
            case "in" | "not in" as word:
                pair = self._pair(child, other)
                if pair is None:
                    return child
                condition = f"{pair[0].name} {word} (select {pair[1].name} from {other.text})"
                if self._choices.percent(25):
                    condition = f"({condition} or {self._expressions(child).condition()})"
            case "scalar":
                pair = self._pair(child, other)
                if pair is None:
                    return child
                name = self._choices.pick(["max", "min"])
                where = f" where {self._join_condition(child, other)}" if self._choices.percent(40) else ""
                condition = f"{pair[0].name} <= (select {name}({pair[1].name}) from {other.text}{where})"
            case word:
                on = self._join_condition(child, other)
                if self._choices.percent(25):
                    on += f" and {self._expressions(both).condition()}"
                condition = f"{word.removeprefix('or ')} (select 1 from {other.text} where {on})"
                if word.startswith("or"):
                    condition = f"({condition} or {self._expressions(child).condition()})"
        return self._pass(child, f"{child.text} where {condition}")

    def _scalar_subquery(self, depth: int) -> Relation:
        child, other = self.relation(depth), self.relation(0)
        items, columns = self._kept(child, 4)
        call, type = self._call(other)
        call = call.replace("(distinct ", "(")
        keys = self._pair(child, other)
        correlated = f" where {keys[0].name} = {keys[1].name}" if keys and self._choices.percent(60) else ""
        columns.append(Column(self._name("q"), type))
        items.append(f"(select {call} from {other.text}{correlated}) {columns[-1].name}")
        return self._select(", ".join(items), child.text, columns)

    def _lateral(self, depth: int) -> Relation:
        child, other = self.relation(depth), self.relation(0)
        keys = self._pair(child, other)
        where = f" where {keys[0].name} = {keys[1].name}" if keys else ""
        if self._choices.percent(50) and (order := self._order(other.columns, total=True)):
            names = ", ".join(c.name for c in other.columns)
            body = (
                f"select {names} from {other.text}{where} order by {order} limit {1 + self._choices.below(3)}"
            )
            added: tuple[Column, ...] = other.columns
        else:
            call, type = self._call(other)
            added = (Column(self._name("l"), type),)
            body = f"select {call} {added[0].name} from {other.text}{where}"
        join = self._choices.pick([", lateral ", " left join lateral "])
        inner = Relation(f"({body}) {self._name('r')}", added)
        on = " on true" if "left" in join else ""
        return self._joined(child, inner, f"{child.text}{join}{inner.text}{on}")

    def _hint(self, depth: int) -> Relation:
        child = self.relation(depth)
        keys = child.of("int", "str", "date")
        if keys and self._choices.percent(20):
            clause = self._choices.pick(["sort by", "distribute by", "cluster by"])
            return self._pass(child, f"{child.text} {clause} {self._choices.pick(keys).name}")
        items, columns = self._kept(child, 6, 1)
        hints = ["coalesce(1)", "repartition(3)"]
        if kept := [c for c in columns if c in keys]:
            key = self._choices.pick(kept).name
            hints += [f"repartition(3, {key})", f"repartition_by_range(2, {key})", f"rebalance({key})"]
        return self._select(f"/*+ {self._choices.pick(hints)} */ " + ", ".join(items), child.text, columns)

    def _constants(self, depth: int) -> Relation:
        """Rows of which no column is read."""
        child = self.relation(depth)
        columns = [Column(self._name("n"), "int"), Column(self._name("n"), "string")]
        values = self._choices.pick(
            [("1", "'x'"), ("null", "cast(null as string)"), ("count(*) over ()", "'é'")]
        )
        items = [f"{value} {column.name}" for value, column in zip(values, columns, strict=True)]
        return self._select(", ".join(items), child.text, columns)

    def _cte(self, relation: Relation) -> tuple[Relation, str]:
        """The relation as a CTE that is read twice."""
        name, one, other = self._name("q"), self._name("r"), self._name("r")
        body = f"with {name} as (select {', '.join(c.name for c in relation.columns)} from {relation.text}) "
        columns = tuple(Column(self._name("a"), c.type) for c in relation.columns)
        keys = relation.of(*ORDERABLE)
        match self._choices.pick(["join", "union"]) if keys else "union":
            case "join":
                key = self._choices.pick(keys).name
                sides = [self._choices.pick([one, other]) for _ in columns]
                select = ", ".join(
                    f"{side}.{old.name} {new.name}"
                    for side, old, new in zip(sides, relation.columns, columns, strict=True)
                )
                kind = self._choices.pick(JOINS[:4])
                text = (
                    f"select {select} from {name} {one} {kind} {name} {other} on {one}.{key} = {other}.{key}"
                )
            case _:
                names = zip(relation.columns, columns, strict=True)
                select = ", ".join(f"{old.name} {new.name}" for old, new in names)
                text = f"select {select} from {name} union all select * from {name}"
        return Relation(f"({text}) {self._name('r')}", columns), body
