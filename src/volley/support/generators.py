# SPDX-License-Identifier: Apache-2.0
"""Which generators run natively, for which arguments."""

from __future__ import annotations

from collections.abc import Iterator

from volley.plan.expressions import Literal
from volley.plan.nodes import Generate
from volley.plan.types import LONG, NULL, ArrayType, MapType, StructType
from volley.support.operators import GENERATORS
from volley.support.reasons import Reason, Unsupported


def check_generate(node: Generate) -> Iterator[Unsupported]:
    rule = GENERATORS.get(node.function)
    if rule is None or rule.reason is not None:
        reason = rule.reason if rule is not None and rule.reason is not None else Reason.OPERATOR
        yield Unsupported(reason, node.function, rule.note if rule is not None else "")
    elif not _fits(node):
        types = ", ".join(str(argument.type) for argument in node.arguments)
        yield Unsupported(Reason.ARGUMENT_TYPES, node.function, types)


def _fits(node: Generate) -> bool:
    types = [argument.type for argument in node.arguments]
    made = [attribute.type for attribute in node.generated]
    match node.function, types:
        case "Explode", [ArrayType(element, _)]:
            return made == [element]
        case "PosExplode", [ArrayType(element, _)]:
            return made[1:] == [element]
        case "Explode", [MapType(key, value, _)]:
            return made == [key, value]
        case "PosExplode", [MapType(key, value, _)]:
            return made[1:] == [key, value]
        case "Inline", [ArrayType(StructType(fields), _)]:
            return made == [field.type for field in fields]
        case "Stack", [_, *cells]:
            count = node.arguments[0]
            fits = all(cell in (made[at % len(made)], NULL) for at, cell in enumerate(cells))
            return isinstance(count, Literal) and isinstance(count.value, int) and count.value > 0 and fits
        case "ReplicateRows", [count_type, *columns]:
            return count_type == LONG and made == columns
        case _:
            return False
