"""What toJSON leaves out: for every expression of a plan its class, type and constructor fields.

JSON turns enumerations and characters into null (the evaluation mode of a cast, the escape of a LIKE) and has no
type for most expressions. Four calls read them all, whatever the size of the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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
        to_names = jvm.chain(jvm.method("scala.Product", "productElementNames", _ITERATOR), jvm.join(4))
        to_values = jvm.chain(jvm.method("scala.Product", "productIterator", _ITERATOR), jvm.join(4))
        self._readers = tuple(
            self._of_all_expressions(handle)
            for handle in (to_class, jvm.otherwise(to_type, _NO_TYPE), to_names, to_values)
        )
        same = jvm.chain(jvm._handles.identity(jvm._object))
        self._identity = jvm.function(same)

    def read(self, plan: Java) -> list[list[list[ExpressionDetail]]]:
        """For each node in depth-first order, for each expression it holds, the details of its parts in that order."""
        classes, types, names, values = (self._split(plan, reader) for reader in self._readers)
        try:
            return [
                [
                    [_detail(*part, separator=self._jvm.separator(4)) for part in zip(*tree, strict=True)]
                    for tree in zip(*node, strict=True)
                ]
                for node in zip(classes, types, names, values, strict=True)
            ]
        except ValueError as error:
            raise CaptureError("the readings of one plan do not fit each other.") from error

    def nodes(self, tree: Java) -> Java:
        """All nodes of a plan or expression, depth first, as a Scala sequence of handles."""
        return tree.map(self._identity)

    def _of_all_expressions(self, handle: Java) -> Java:
        jvm = self._jvm
        parts = jvm.chain(jvm.each(_TREE, _SEQ, jvm.function(handle)), jvm.join(3))
        expressions = jvm.method(_PLAN, "expressions", _SEQ)
        trees = jvm.chain(expressions, jvm.each(_SEQ, "java.lang.Object", jvm.function(parts)), jvm.join(2))
        return jvm.function(trees)

    def _split(self, plan: Java, reader: Java) -> list[list[list[str]]]:
        first, second, third = (self._jvm.separator(level) for level in (1, 2, 3))
        text = plan.map(reader).mkString(first)
        return [
            [tree.split(third) for tree in node.split(second)] if node else [] for node in text.split(first)
        ]


def _detail(class_name: str, type_json: str, names: str, values: str, *, separator: str) -> ExpressionDetail:
    data_type = OtherType("?") if type_json == _NO_TYPE else parse_type(json.loads(type_json))
    fields = dict(zip(names.split(separator), values.split(separator), strict=True)) if names else {}
    return ExpressionDetail(class_name, data_type, fields)
