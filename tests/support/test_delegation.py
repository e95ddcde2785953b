# SPDX-License-Identifier: Apache-2.0
"""Which parts of an expression the JVM evaluates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from volley.plan.expressions import (
    JVM_EXPRESSION,
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    EvalMode,
    Expression,
    Literal,
    Options,
    ScalarSubquery,
)
from volley.plan.nodes import Aggregate, FileScan, Filter, Node, Project
from volley.plan.types import BOOLEAN, INTEGER, LONG, STRING, TIMESTAMP, OtherType
from volley.support.check import check
from volley.support.jvm_expressions import delegate_to_jvm, delegated

S = Attribute(1, "s", STRING)
T = Attribute(2, "t", TIMESTAMP)
N = Attribute(3, "n", INTEGER)
SCAN = FileScan("parquet", (), (S, T, N), (), ())


class Programs:
    """Prepares everything but what is in `refused`, and remembers what it read."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.read: list[tuple[str, list[str]]] = []

    def prepare(self, call: Call, read: Sequence[Expression]) -> Options | str:
        if call.function in self.refused:
            return "no"
        self.read.append((call.function, [getattr(part, "name", "?") for part in read]))
        return (("program", len(self.read)),)

    def prepare_together(self, calls: Sequence[Call], read: Sequence[Expression]) -> Options | str:
        self.read.append((" ".join(call.function for call in calls), [getattr(p, "name", "?") for p in read]))
        return (("program", len(self.read)),)

    def prepare_aggregate(
        self, function: Call, read: Sequence[Expression], *, complete: bool
    ) -> Options | str:
        return self.prepare(function, read)

    def defer(self, key: Hashable, call: Call, read: Sequence[Expression]) -> Options | None:
        return (("program", 100),)


def nothing(old: Node, new: Node) -> None:
    pass


def unknown(name: str, *arguments: Expression) -> Call:
    return Call(name, arguments, STRING)


def concat(*parts: Expression) -> Call:
    return Call("Concat", parts, STRING)


def rewritten(expression: Expression, programs: Programs) -> Expression:
    plan = delegate_to_jvm(Project((Alias(9, "x", expression),), SCAN), programs, nothing)
    assert isinstance(plan, Project)
    alias = plan.expressions[0]
    assert isinstance(alias, Alias)
    return alias.child


def names(expression: Expression) -> list[str]:
    return [str(call.option("name")) for call in delegated(expression)]


def test_only_the_part_without_a_native_form_crosses() -> None:
    programs = Programs()
    found = rewritten(concat(unknown("Format", T, Literal("y", STRING)), S), programs)
    assert isinstance(found, Call)
    assert found.function == "Concat"
    assert names(found) == ["Format"]
    assert found.arguments[0] == Call(
        JVM_EXPRESSION, (T,), STRING, None, (("program", 1), ("name", "Format"))
    )


def test_what_is_native_stays_as_it_is() -> None:
    expression = concat(S, S)
    assert rewritten(expression, Programs()) is expression


def test_a_value_that_is_not_carried_takes_what_reads_it_along() -> None:
    made = Call("MakeMap", (S, N), OtherType("map"))
    programs = Programs()
    found = rewritten(concat(S, unknown("MapKeys", made)), programs)
    assert names(found) == ["MapKeys"]
    assert programs.read == [("MapKeys", ["s", "n"])]
    assert names(rewritten(made, Programs())) == []


def test_what_the_jvm_refuses_takes_what_reads_it_along_or_stays() -> None:
    assert names(rewritten(unknown("Outer", unknown("Inner", S)), Programs("Inner"))) == ["Outer"]
    expression = concat(unknown("Inner", S))
    assert rewritten(expression, Programs("Inner", "Concat")) is expression


def test_several_parts_cross_together() -> None:
    both = concat(unknown("Format", T), unknown("Format", S))
    assert names(rewritten(both, Programs())) == ["Concat"]


def test_a_condition_that_is_partly_native_stays_so() -> None:
    def test(part: Expression) -> Call:
        return Call("IsNotNull", (part,), BOOLEAN)

    def both(left: Expression, right: Expression) -> Call:
        return Call("And", (left, right), BOOLEAN)

    first, second = test(unknown("Format", T)), test(unknown("Format", S))
    assert names(rewritten(both(first, second), Programs())) == ["And"]
    assert names(rewritten(both(both(first, test(N)), second), Programs())) == ["Format", "Format"]


def test_lambdas_are_not_taken_apart() -> None:
    variable = Call("NamedLambdaVariable", (), INTEGER)
    body = unknown("Format", variable)
    function = Call("LambdaFunction", (body, variable), STRING)
    programs = Programs()
    found = rewritten(unknown("Transform", S, function), programs)
    assert names(found) == ["Transform"]
    assert programs.read == [("Transform", ["s"])]


def test_an_aggregate_is_never_taken_but_its_arguments_are() -> None:
    call = AggregateCall(Call("Max", (unknown("Format", T),), STRING), AggregateMode.COMPLETE, False, None, 5)
    result = Attribute(5, "max", STRING)
    plan = delegate_to_jvm(Aggregate((), (call,), (result,), (result,), SCAN), Programs(), nothing)
    assert isinstance(plan, Aggregate)
    assert plan.calls[0].function.function == "Max"
    assert names(plan.calls[0]) == ["Format"]
    assert check(plan).native


def test_a_subquery_is_read_as_a_value_and_its_own_plan_is_rewritten() -> None:
    below = Project((Alias(7, "y", unknown("Format", S)),), SCAN)
    subquery = ScalarSubquery(4, below, STRING)
    programs = Programs()
    condition = Call("IsNotNull", (unknown("Compare", S, subquery),), BOOLEAN)
    hinted = FileScan("parquet", (), (S, T, N), (), (condition,))
    plan = delegate_to_jvm(Filter(condition, hinted), programs, nothing)
    assert programs.read == [("Format", ["s"]), ("Compare", ["s", "?"])]
    assert check(plan).native
    (call,) = delegated(plan.condition if isinstance(plan, Filter) else condition)
    assert isinstance(plan, Filter)
    assert isinstance(plan.child, FileScan)
    (hint,) = plan.child.filters
    assert "JvmExpression" not in str(hint).partition("plan=")[0]
    assert call.arguments[1].plan is _subquery_of(hint).plan  # type: ignore[union-attr]


def _subquery_of(hint: Expression) -> ScalarSubquery:
    assert isinstance(hint, Call)
    compare = hint.arguments[0]
    assert isinstance(compare, Call)
    subquery = compare.arguments[1]
    assert isinstance(subquery, ScalarSubquery)
    return subquery


def test_nodes_that_change_are_told() -> None:
    told: list[tuple[Node, Node]] = []
    below = Project((Alias(7, "y", unknown("Format", S)),), SCAN)
    top = Project((Attribute(7, "y", STRING),), below)
    plan = delegate_to_jvm(top, Programs(), lambda old, new: told.append((old, new)))
    assert [old for old, _ in told] == [below, top]
    assert told[-1][1] is plan


def test_casts_of_text_have_a_program_for_unusual_texts() -> None:
    cast = Call("Cast", (S,), LONG, EvalMode.ANSI)
    found = rewritten(cast, Programs())
    assert isinstance(found, Call)
    assert (found.function, found.option("program")) == ("Cast", 100)


def test_several_parts_of_a_projection_cross_together() -> None:
    guarded = Call("If", (Call("IsNull", (S,), BOOLEAN), unknown("Slow", S), S), STRING)
    parts = (concat(unknown("Format", T), S), unknown("Format", T), unknown("Sound", S), guarded)
    programs = Programs()
    plan = delegate_to_jvm(
        Project(tuple(Alias(9 + place, "x", part) for place, part in enumerate(parts)), SCAN),
        programs,
        nothing,
    )
    assert isinstance(plan, Project)
    assert programs.read[-1] == ("Format Format Sound", ["t", "s"])
    assert [names(expression) for expression in plan.expressions[:3]] == [["Format, Format, Sound"]] * 3
    assert names(plan.expressions[3]) == ["Slow"]
