# SPDX-License-Identifier: Apache-2.0
"""Row order as a property of a plan: which operators depend on it, which keep it, and how it is made explicit.

Spark's sorts are stable and its exchanges read map outputs in order, and some of its plans rely on that. A correlated
`ORDER BY v LIMIT 1` becomes

    Window         row_number() over (partition by k)       no order: the first row that arrives
      Sort         k                                        stable
        Exchange   hash(k)                                  keeps the relative order of rows with the same k
          Project  id, k
            Sort   v                                        global

Native operators guarantee no order, so no operator may rely on one implicitly. `make_order_explicit` turns the input
order that an operator depends on into sort keys of that operator:

    Window         row_number() over (partition by k order by v)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from volley.plan.carried_order import Order, OrderCarrier
from volley.plan.expressions import (
    Alias,
    Expression,
    Frame,
    Literal,
    WindowCall,
)
from volley.plan.expressions import transform as transform_expression
from volley.plan.nodes import (
    Exchange,
    FileScan,
    Filter,
    Generate,
    Limit,
    Node,
    Project,
    Sort,
    TopN,
    Union,
    Window,
    transform,
)
from volley.plan.traits import NUMBERING, depends_on_order, function_of, traits_of, window_calls


def order_of(node: Node) -> Order:
    """The order in which Spark outputs the node's rows."""
    return OrderCarrier().carry(node)[1]


def is_ordered(node: Node) -> bool:
    """Whether a native plan outputs its rows in a requested order."""
    while traits_of(node).keeps_order:
        (node,) = node.children
    return isinstance(node, TopN) or (isinstance(node, Sort) and node.whole)


def needs_input_order(node: Node) -> bool:
    """Whether the node's rows, and not only their order, depend on the order of its input."""
    return traits_of(node).needs_order


def missing_order(node: Node) -> str:
    """Why the order that the node depends on cannot be made explicit; "" if it can, or if none was requested."""
    match node:
        case Window(calls, child) if needs_input_order(node):
            order = order_of(child)
            found = (_order_call(call, order)[1] for call in window_calls(calls))
            return next(filter(None, found), "") if order.requested else ""
        case Limit(_, _, _, child) if not is_ordered(child):
            # After a hash exchange the first rows are those of the first partition, which Spark leaves undefined.
            return order_of(child).lost
        case _:
            return ""


def make_order_explicit(plan: Node, one_task: bool = False) -> Node:
    """Rewrite every order that a node depends on as sort keys of that node.

    The keys are those of an ORDER BY below, then the positions of rows in their files where these are known: in small
    files that `one_task` reads. Nothing is guaranteed for a node for which `missing_order` gives a reason.
    """
    carrier = OrderCarrier(one_task)

    def change(node: Node) -> Node:
        match node:
            case Window() if needs_input_order(node):
                return _order_window(node, carrier)
            case Limit() if not is_ordered(node.child):
                return _order_limit(node, carrier)
            case TopN():
                return _order_top_n(node, carrier)
            case Sort() if node.whole:
                return _order_sort(node, carrier)
            case Generate() if is_ordered(node.child):
                return _order_generate(node, carrier)
            case _:
                return node

    return transform(plan, change)


# -------------------------------------------------------------------------------------------- consumers


def _order_window(node: Window, carrier: OrderCarrier) -> Node:
    child, order = carrier.carry(node.child)

    def extend(part: Expression) -> Expression:
        return _order_call(part, order)[0] if isinstance(part, WindowCall) else part

    calls = tuple(transform_expression(call, extend) for call in node.calls)
    if calls == node.calls:
        return node
    return Project(node.output, Window(tuple(_aliases(calls)), child))


def _aliases(calls: tuple[Expression, ...]) -> Iterator[Alias]:
    for call in calls:
        assert isinstance(call, Alias)
        yield call


def _order_call(call: WindowCall, order: Order) -> tuple[WindowCall, str]:
    """The call with the order of its input appended to its own, and why that is incomplete."""
    if not depends_on_order(call):
        return call, ""
    own = tuple(key.child for key in call.order_by)
    keys, missing = order.keys_within((*call.partition_by, *own))
    if not keys:
        return call, missing
    frame = _frame_over_rows(call)
    if frame is None and _is_last_peer(call):
        peers = (*call.partition_by, *own)
        return replace(call, partition_by=peers, order_by=keys, frame=Frame(True, None, None)), missing
    if frame is None:
        # More sort keys would make fewer rows equal, and so change a range frame.
        return call, missing or (f"{_name(call)} over a range" if order.requested else "")
    return replace(call, order_by=(*call.order_by, *keys), frame=frame), missing


def _frame_over_rows(call: WindowCall) -> Frame | None:
    """The equivalent frame over rows instead of values; None if there is none."""
    frame = call.frame
    if frame.rows or _name(call) in NUMBERING:
        return frame
    if frame.lower is None and frame.upper is None:
        return replace(frame, rows=True)
    # Every frame contains the partition's first row.
    return replace(frame, rows=True) if _name(call) == "First" and _ends_at_peers(call) else None


def _is_last_peer(call: WindowCall) -> bool:
    """Whether the value is that of the last row that is equal by the call's own ORDER BY."""
    return _name(call) == "Last" and _ends_at_peers(call)


def _ends_at_peers(call: WindowCall) -> bool:
    """Whether the frame is all rows up to the current row's last peer, without skipping NULLs."""
    frame = call.frame
    ends = isinstance(frame.upper, Literal) and frame.upper.value == 0
    return frame.lower is None and ends and not function_of(call).option("ignoreNulls")


def _order_limit(node: Limit, carrier: OrderCarrier) -> Node:
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(())
    if not keys or not (order.requested or _reads_several(node.child)):
        return node
    return Project(node.output, replace(node, child=Sort(keys, True, child)))


def _reads_several(node: Node) -> bool:
    """Whether the rows come from several files or branches, which native plans read concurrently."""
    while isinstance(node, Project | Filter | Limit | Exchange):
        node = node.child
    return isinstance(node, Union) or (isinstance(node, FileScan) and len(node.files) > 1)


def _order_top_n(node: TopN, carrier: OrderCarrier) -> Node:
    """Among equal rows, take those that arrive first. Spark guarantees none, but does this on small inputs."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    return replace(node, keys=(*node.keys, *keys), child=child) if keys else node


def _order_sort(node: Sort, carrier: OrderCarrier) -> Node:
    """Keep the order of equal rows."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    if not keys:
        return node
    return Project(node.output, Sort((*node.keys, *keys), True, child))


def _order_generate(node: Generate, carrier: OrderCarrier) -> Node:
    """Sort after the generator instead of before it."""
    generated, order = carrier.carry(node)
    keys, _ = order.keys_within(())
    return Project(node.output, Sort(keys, True, generated)) if keys else node


def _name(call: WindowCall) -> str:
    return function_of(call).function
