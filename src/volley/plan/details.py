"""What toJSON leaves out: for every expression of a plan its class, type and constructor fields.

JSON turns enumerations and characters into null (the evaluation mode of a cast, the escape of a LIKE) and has no
type for most expressions. One pass in the JVM reads them all, whatever the size of the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from volley.errors import CaptureError
from volley.plan.jvm import Java, Jvm
from volley.plan.types import DataType, OtherType, parse_type

_NO_TYPE = '"?"'
_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
_PLAN = "org.apache.spark.sql.catalyst.plans.QueryPlan"
_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.Expression"
_SEQ = "scala.collection.immutable.Seq"
_ITERATOR = "scala.collection.Iterator"


@dataclass(frozen=True)
class ExpressionDetail:
    class_name: str
    type: DataType
    fields: dict[str, str]


class DetailReader:
    """Reads the details of whole plans through one gateway."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        to_class = jvm.chain(
            jvm.method("java.lang.Object", "getClass", "java.lang.Class"),
            jvm.method("java.lang.Class", "getName", "java.lang.String"),
        )
        to_type = jvm.chain(
            jvm.method(_EXPRESSION, "dataType", "org.apache.spark.sql.types.DataType"),
            jvm.method("org.apache.spark.sql.types.DataType", "json", "java.lang.String"),
        )
        to_names = jvm.chain(jvm.method("scala.Product", "productElementNames", _ITERATOR), jvm.join(5))
        to_values = jvm.chain(jvm.method("scala.Product", "productIterator", _ITERATOR), jvm.join(5))
        facts = jvm.joined(4, to_class, jvm.otherwise(to_type, _NO_TYPE), to_names, to_values)
        parts = jvm.chain(jvm.each(_TREE, _SEQ, jvm.function(facts)), jvm.join(3))
        expressions = jvm.method(_PLAN, "expressions", _SEQ)
        trees = jvm.chain(expressions, jvm.each(_SEQ, "java.lang.Object", jvm.function(parts)), jvm.join(2))
        self._reader = jvm.function(trees)
        self._identity = jvm.function(jvm.same())

    def read(self, plan: Java) -> list[list[list[ExpressionDetail]]]:
        """For each node in depth-first order, for each expression it holds, the details of its parts in that order."""
        first, second, third = (self._jvm.separator(level) for level in (1, 2, 3))
        text = str(plan.map(self._reader).mkString(first))
        return [
            [[self._detail(part) for part in tree.split(third)] for tree in node.split(second)]
            if node
            else []
            for node in text.split(first)
        ]

    def nodes(self, tree: Java) -> Java:
        """All nodes of a plan or expression, depth first, as a Scala sequence of handles."""
        return tree.map(self._identity)

    def _detail(self, text: str) -> ExpressionDetail:
        try:
            class_name, type_json, names, values = text.split(self._jvm.separator(4))
            between = self._jvm.separator(5)
            fields = dict(zip(names.split(between), values.split(between), strict=True)) if names else {}
        except ValueError as error:
            raise CaptureError("what was read of an expression has another shape than expected.") from error
        return ExpressionDetail(class_name, _type_of(type_json), fields)


@lru_cache(maxsize=1024)
def _type_of(text: str) -> DataType:
    return OtherType("?") if text == _NO_TYPE else parse_type(json.loads(text))
