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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from volley.plan import own_ids
from volley.plan.expressions import (
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    attribute_of,
    canonicalize,
    references,
)
from volley.plan.expressions import transform as transform_expression
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    Node,
    Partitioning,
    Project,
    Range,
    Sort,
    TopN,
    Union,
    Unknown,
    Window,
    WriteFiles,
    transform,
)
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonWindow,
)
from volley.plan.traits import NUMBERING, depends_on_order, function_of, traits_of, window_calls
from volley.plan.types import (
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGER,
    INTEGRAL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DecimalType,
)

Expressions = frozenset[Expression]

ALL_ROWS: Expressions = frozenset()
"""The empty set of expressions, on which all rows agree."""


@dataclass(frozen=True)
class OrderKey:
    """Rows with equal values of `within` and of the keys before are in the order of `key`.

    `requested`: by an ORDER BY of the query, and not a side effect of a Spark algorithm that sorts.
    """

    key: SortKey
    within: Expressions = ALL_ROWS
    requested: bool = True


@dataclass(frozen=True)
class Order:
    """What is known about the order of Spark's rows.

    Rows with equal values of `together` are in one Spark partition; None: unknown. Columns in `not_null` have no NULL.
    `lost` names the operator after which a requested order is no longer known.
    """

    keys: tuple[OrderKey, ...] = ()
    together: Expressions | None = None
    not_null: frozenset[int] = frozenset()
    lost: str = ""

    @property
    def requested(self) -> bool:
        """Whether an ORDER BY below contributes to it."""
        return bool(self.lost) or any(key.requested for key in self.keys)

    def keys_within(self, grouped: Iterable[Expression]) -> tuple[tuple[SortKey, ...], str]:
        """The order among rows with equal `grouped`, as sort keys, and why it is incomplete ("" if it is complete)."""
        known = {canonicalize(part) for part in grouped}
        keys: list[SortKey] = []
        for position, item in enumerate(self.keys):
            if not item.within <= known:
                missing = any(later.requested for later in self.keys[position:])
                return tuple(keys), self.lost or ("Exchange" if missing else "")
            expression = canonicalize(item.key.child)
            if expression not in known and not isinstance(expression, Literal):
                keys.append(item.key)
                known.add(expression)
        return tuple(keys), self.lost


def order_of(node: Node) -> Order:
    """The order in which Spark outputs the node's rows."""
    return _OrderCarrier().carry(node)[1]


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
    carrier = _OrderCarrier(one_task)

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
            case _:
                return node

    return transform(plan, change)


# -------------------------------------------------------------------------------------------- consumers


def _order_window(node: Window, carrier: _OrderCarrier) -> Node:
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


def _order_limit(node: Limit, carrier: _OrderCarrier) -> Node:
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


def _order_top_n(node: TopN, carrier: _OrderCarrier) -> Node:
    """Among equal rows, take those that arrive first. Spark guarantees none, but does this on small inputs."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    return replace(node, keys=(*node.keys, *keys), child=child) if keys else node


def _order_sort(node: Sort, carrier: _OrderCarrier) -> Node:
    """Keep the order of equal rows."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    if not keys:
        return node
    return Project(node.output, Sort((*node.keys, *keys), True, child))


def _name(call: WindowCall) -> str:
    return function_of(call).function


# --------------------------------------------------------------------------------------------- carrier

# Spark does not split files this small, so it reads them one after the other.
MAX_FILES = 16
MAX_BYTES = 4 * 2**20


@dataclass
class _OrderCarrier:
    """Carries the columns that define an order up to where it is needed."""

    one_task: bool = False
    _ids: Iterator[int] = field(default_factory=lambda: count(own_ids.PLACE))

    def carry(self, node: Node) -> tuple[Node, Order]:
        """The node with the columns of its order keys added to its own, and that order."""
        match node:
            case Project():
                return self._project(node)
            case Filter():
                child, order = self.carry(node.child)
                known = order.not_null | _not_null(node.condition)
                return replace(node, child=child), replace(order, not_null=known)
            case Sort():
                child, order = self.carry(node.child)
                return replace(node, child=child), _order_after_sort(node, order)
            case TopN():
                return self._top(node)
            case Limit():
                child, order = self.carry(node.child)
                return replace(node, child=child), replace(order, together=ALL_ROWS) if node.whole else order
            case Window() | PythonEval():
                child, order = self.carry(node.child)
                return replace(node, child=child), order
            case Exchange():
                child, order = self.carry(node.child)
                return replace(node, child=child), _order_after_exchange(node, order)
            case Join():
                return self._join(node)
            case Union():
                return self._union(node)
            case FileScan():
                return self._scan(node)
            case LocalRows():
                return self._number_rows(node)
            case Range():
                key = SortKey(node.output[0], node.step > 0, True)
                return node, Order((OrderKey(key, requested=False),))
            case Aggregate():
                # Groups are in hash table order.
                return node, Order(together=self.carry(node.child)[1].together)
            case Expand() | Unknown() | WriteFiles():
                return node, self._lose(node)
            case PythonMap() | PythonGroupMap() | PythonAggregate() | PythonWindow():
                return node, self._lose(node)
            case _:
                return node, Order()

    def _lose(self, node: Node, name: str = "") -> Order:
        requested = any(self.carry(child)[1].requested for child in node.children)
        return Order(lost=(name or type(node).__name__) if requested else "")

    def _scan(self, node: FileScan) -> tuple[Node, Order]:
        """Spark reads the largest file first, each from its start."""
        limit = MAX_FILES if self.one_task else 1
        if len(node.files) > limit or sum(file.size_bytes for file in node.files) > MAX_BYTES:
            return node, Order()
        files = sorted(node.files, key=lambda file: -file.size_bytes)
        if len(files) <= 1:
            return self._number_rows(node)
        branch = Attribute(next(self._ids), "file", INTEGER, False)
        place = Attribute(next(self._ids), "place", INTEGER, False)
        branches = []
        for number, file in enumerate(files):
            numbered = Window((_row_number(place),), replace(node, files=(file,)))
            file_number = Alias(branch.id, branch.name, Literal(number, INTEGER))
            branches.append(Project((*numbered.output, file_number), numbered))
        keys = tuple(OrderKey(SortKey(key, True, True), requested=False) for key in (branch, place))
        return Union((*node.output, place, branch), tuple(branches)), Order(keys)

    def _number_rows(self, node: FileScan | LocalRows) -> tuple[Node, Order]:
        place = Attribute(next(self._ids), "place", INTEGER, False)
        key = OrderKey(SortKey(place, True, True), requested=False)
        return Window((_row_number(place),), node), Order((key,))

    def _project(self, node: Project) -> tuple[Node, Order]:
        child, order = self.carry(node.child)
        names: dict[Expression, Expression] = {}
        for expression in node.expressions:
            names.setdefault(canonicalize(expression), canonicalize(attribute_of(expression)))
        carried = replace(
            node, expressions=(*node.expressions, *_missing_columns(node, child, order)), child=child
        )
        return carried, _rename(order, names)

    def _top(self, node: TopN) -> tuple[Node, Order]:
        # Spark too picks any of equal rows, so the order below does not matter.
        order = Order(tuple(OrderKey(key) for key in node.keys), ALL_ROWS)
        hidden = _missing_columns(node, node.child, order)
        return replace(node, expressions=(*node.expressions, *hidden)), order

    def _join(self, node: Join) -> tuple[Node, Order]:
        side = _probe_side(node)
        if side is None:
            return node, self._lose(node, f"{node.kind} join")
        stream, other = (node.left, node.right) if side is BuildSide.LEFT else (node.right, node.left)
        child, order = self.carry(stream)
        shown = {attribute.id for attribute in other.output}
        if any(attribute.id in shown for attribute in child.output):
            return node, self._lose(node, f"{node.kind} join")
        joined = replace(node, left=child) if side is BuildSide.LEFT else replace(node, right=child)
        return joined, order

    def _union(self, node: Union) -> tuple[Node, Order]:
        """Branches follow one another: sort by branch number, then by each branch's keys, NULL in the others."""
        carried = [self.carry(branch) for branch in node.inputs]
        together = ALL_ROWS if all(order.together == ALL_ROWS for _, order in carried) else None
        requested = any(order.requested for _, order in carried)
        if not requested and not all(order.keys for _, order in carried):
            return node, Order(together=together)
        if any(order.lost or order.together for _, order in carried):
            return node, Order(lost="Union" if requested else "")
        number = Attribute(next(self._ids), "branch", INTEGER, False)
        keys = [OrderKey(SortKey(number, True, True), requested=requested)]
        columns: list[tuple[int, Attribute, Expression]] = []
        for place, (_, order) in enumerate(carried):
            shown = zip(node.inputs[place].output, node.output, strict=True)
            names: dict[Expression, Expression] = {
                canonicalize(theirs): canonicalize(ours) for theirs, ours in shown
            }
            for item in _rename(order, names).keys:
                column = Attribute(next(self._ids), "key", item.key.type)
                columns.append((place, column, item.key.child))
                keys.append(replace(item, key=replace(item.key, child=column)))
        branches = []
        for place, (branch, _) in enumerate(carried):
            key_columns = [
                Alias(column.id, column.name, key if place == at else Literal(None, column.type))
                for at, column, key in columns
            ]
            numbered = Alias(number.id, number.name, Literal(place, INTEGER))
            branches.append(Project((*node.inputs[place].output, numbered, *key_columns), branch))
        output = (*node.output, number, *(column for _, column, _ in columns))
        return Union(output, tuple(branches)), Order(tuple(keys), together)


def _row_number(column: Attribute) -> Alias:
    frame = Frame(True, None, Literal(0, INTEGER))
    return Alias(column.id, column.name, WindowCall(Call("RowNumber", (), INTEGER), (), (), frame))


def _missing_columns(node: Project | TopN, child: Node, order: Order) -> list[Attribute]:
    """The columns that the order keys read and the node does not output."""
    shown = {attribute.id for attribute in node.output}
    read = {id for item in order.keys for id in references(item.key)} - shown
    return list({a.id: a for a in child.output if a.id in read}.values())


def _rename(order: Order, names: Mapping[Expression, Expression]) -> Order:
    def rename(parts: Expressions) -> Expressions:
        return frozenset(names.get(part, part) for part in parts)

    return replace(
        order,
        keys=tuple(replace(item, within=rename(item.within)) for item in order.keys),
        together=None if order.together is None else rename(order.together),
    )


def _order_after_exchange(node: Exchange, order: Order) -> Order:
    """A reader reads map outputs one after the other, so rows of one partition keep their relative order."""
    match node.partitioning:
        case Partitioning.SINGLE | Partitioning.BROADCAST:
            return replace(order, together=ALL_ROWS)
        case Partitioning.HASH:
            return _partition_by(order, node.keys)
        case Partitioning.RANGE:
            return _partition_by(order, [key.child for key in node.order])
        case _:
            return Order(not_null=order.not_null, lost="Exchange" if order.requested else "")


def _partition_by(order: Order, keys: Iterable[Expression]) -> Order:
    """Rows with equal `keys` are in one partition and keep their order; nothing is known about the others."""
    met = frozenset(canonicalize(key) for key in keys)
    return replace(order, keys=_restrict_to(order.keys, met), together=met)


def _restrict_to(keys: tuple[OrderKey, ...], agreed: Expressions) -> tuple[OrderKey, ...]:
    return tuple(replace(item, within=item.within | agreed) for item in keys)


def _order_after_sort(node: Sort, order: Order) -> Order:
    """A stable sort: by its keys, then as before."""
    before = order.keys
    lost = order.lost
    if order.requested and not _is_stable(node, order):
        before, lost = (), "Sort"
    if node.whole:
        keys = tuple(OrderKey(key) for key in node.keys)
        return Order((*keys, *before), None, order.not_null, lost)
    if order.together is None:
        # Each partition is sorted separately: only equal rows keep their relative order.
        agreed = frozenset(canonicalize(key.child) for key in node.keys)
        return replace(order, keys=_restrict_to(before, agreed), lost=lost)
    keys = tuple(OrderKey(key, order.together, requested=False) for key in node.keys)
    return replace(order, keys=(*keys, *_restrict_to(before, order.together)), lost=lost)


_RADIX = INTEGRAL | FRACTIONAL | {BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ}
_RADIX_DIGITS = 18


def _is_stable(node: Sort, order: Order) -> bool:
    """Spark's radix sort on a single number is not stable: each NULL displaces a row that arrived before it."""
    if len(node.keys) != 1:
        return True
    (key,) = node.keys
    is_decimal = isinstance(key.type, DecimalType) and key.type.precision <= _RADIX_DIGITS
    if key.type not in _RADIX and not is_decimal:
        return True
    match key.child:
        case Literal(value, _):
            return value is not None
        case Attribute(id, _, _, nullable):
            return not nullable or id in order.not_null
        case _:
            return False


def _probe_side(node: Join) -> BuildSide | None:
    """The side that a join streams: it outputs the results of each of its rows in turn."""
    left = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)
    right = (JoinKind.INNER, JoinKind.RIGHT)
    if node.build is None and not node.left_keys:
        return None
    if node.build is not BuildSide.LEFT and node.kind in left:
        return BuildSide.LEFT
    if node.build is not BuildSide.RIGHT and node.kind in right:
        return BuildSide.RIGHT
    return None


def _not_null(condition: Expression) -> frozenset[int]:
    match condition:
        case Call("And", (left, right), _, _, _):
            return _not_null(left) | _not_null(right)
        case Call("IsNotNull", (Attribute(id, _, _, _),), _, _, _):
            return frozenset({id})
        case _:
            return frozenset()
