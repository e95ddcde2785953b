# SPDX-License-Identifier: Apache-2.0
"""The order in which Spark outputs rows, and plans that carry the columns which define it.

Native operators guarantee no order. `OrderCarrier` adds the columns of an order to the plan below an operator, so that
`plan.order` can turn the order into sort keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from volley.plan import synthetic_ids
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
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Generate,
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
)
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.types import (
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGER,
    INTEGRAL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DecimalType,
    StructType,
)

Expressions = frozenset[Expression]

ALL_ROWS: Expressions = frozenset()
"""The empty set of expressions, on which all rows agree."""


@dataclass(frozen=True)
class OrderKey:
    """Rows with equal values of `within` and of the keys before are in the order of `key`.

    `requested`: by an ORDER BY of the query, and not a side effect of a Spark algorithm that sorts. `partial`: it says
    only in which order the rows that a generator made from one row follow each other, so it merely breaks ties.
    """

    key: SortKey
    within: Expressions = ALL_ROWS
    requested: bool = True
    partial: bool = False


@dataclass(frozen=True)
class Order:
    """What is known about the order of Spark's rows.

    Rows with equal values of `together` are in one Spark partition; None: unknown. Columns in `not_null` have no NULL.
    `lost` names the operator after which a requested order is no longer known. `total`: no two rows are equal by all
    keys.
    """

    keys: tuple[OrderKey, ...] = ()
    together: Expressions | None = None
    not_null: frozenset[int] = frozenset()
    lost: str = ""
    total: bool = False

    @property
    def requested(self) -> bool:
        """Whether an ORDER BY below contributes to it."""
        return bool(self.lost) or any(key.requested for key in self.keys)

    def is_total_within(self, grouped: Iterable[Expression]) -> bool:
        """Whether `keys_within` gives the order of any two rows."""
        known = {canonicalize(part) for part in grouped}
        for item in self.keys:
            if not item.within <= known or item.partial:
                return False
            known.add(canonicalize(item.key.child))
        return self.total and bool(self.keys)

    def keys_within(self, grouped: Iterable[Expression]) -> tuple[tuple[SortKey, ...], str]:
        """The order among rows with equal `grouped`, as sort keys, and why it is incomplete ("" if it is complete)."""
        known = {canonicalize(part) for part in grouped}
        keys: list[SortKey] = []
        for position, item in enumerate(self.keys):
            if not item.within <= known or (item.partial and not known):
                missing = any(later.requested for later in self.keys[position:])
                return tuple(keys), self.lost or ("Exchange" if missing else "")
            expression = canonicalize(item.key.child)
            if expression not in known and not isinstance(expression, Literal):
                keys.append(item.key)
                known.add(expression)
        return tuple(keys), self.lost


@dataclass
class OrderCarrier:
    """Carries the columns that define an order up to where it is needed.

    The order of rows in files is known for scans of up to `max_files` files and `max_bytes`: Spark does not split files
    this small, so it reads them one after the other.
    """

    max_files: int = 1
    max_bytes: int = 4 * 2**20
    _ids: Iterator[int] = field(default_factory=lambda: count(synthetic_ids.PLACE))

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
                key = SortKey(node.output[0], node.step > 0, nulls_first=True)
                return node, Order((OrderKey(key, requested=False),), total=True)
            case Aggregate():
                # Groups are in hash table order.
                return node, Order(together=self.carry(node.child)[1].together)
            case Generate():
                return self._generate(node)
            case Expand() | Unknown() | WriteFiles():
                return node, self._lose(node)
            case (
                PythonMap()
                | PythonGroupMap()
                | PythonCoGroupMap()
                | PythonAggregate()
                | PythonWindow()
                | PythonTable()
            ):
                return node, self._lose(node)
            case _:
                return node, Order()

    def _lose(self, node: Node, name: str = "") -> Order:
        requested = any(self.carry(child)[1].requested for child in node.children)
        return Order(lost=(name or type(node).__name__) if requested else "")

    def _scan(self, node: FileScan) -> tuple[Node, Order]:
        """Spark reads the largest file first, each from its start."""
        size_bytes = sum(file.size_bytes for file in node.files)
        if node.bucketed or len(node.files) > self.max_files or size_bytes > self.max_bytes:
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
        keys = tuple(
            OrderKey(SortKey(key, ascending=True, nulls_first=True), requested=False)
            for key in (branch, place)
        )
        return Union((*node.output, place, branch), tuple(branches)), Order(keys, total=True)

    def _number_rows(self, node: FileScan | LocalRows) -> tuple[Node, Order]:
        place = Attribute(next(self._ids), "place", INTEGER, False)
        key = OrderKey(SortKey(place, ascending=True, nulls_first=True), requested=False)
        return Window((_row_number(place),), node), Order((key,), total=True)

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

    def _generate(self, node: Generate) -> tuple[Node, Order]:
        """Rows are in the order of the child, those made from one row by their position."""
        child, order = self.carry(node.child)
        keys, missing = order.keys, ""
        if order.requested:
            # Rows that are equal by these keys must not be interleaved: number them.
            requested, missing = order.keys_within(())
            place = Attribute(next(self._ids), "place", INTEGER, False)
            child = Window((_row_number(place, requested),), child)
            keys = (OrderKey(SortKey(place, ascending=True, nulls_first=True)),)
        if missing:
            return node, self._lose(node)
        is_total = bool(keys) and not any(key.within or key.partial for key in keys)
        position = node.position or Attribute(next(self._ids), "position", INTEGER)
        required = (*node.required, *_columns_of(keys, child, node.required))
        last = OrderKey(
            SortKey(position, ascending=True, nulls_first=True),
            requested=order.requested,
            partial=not is_total,
        )
        generated = replace(node, required=required, position=position, child=child)
        return generated, replace(order, keys=(*keys, last))

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
        # A row may match several others.
        repeats = node.kind not in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)
        return joined, replace(order, total=order.total and not repeats)

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
        keys = [OrderKey(SortKey(number, ascending=True, nulls_first=True), requested=requested)]
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
        total = all(order.total for _, order in carried)
        return Union(output, tuple(branches)), Order(tuple(keys), together, total=total)


def _row_number(column: Attribute, order_by: tuple[SortKey, ...] = ()) -> Alias:
    frame = Frame(rows=True, lower=None, upper=Literal(0, INTEGER))
    return Alias(column.id, column.name, WindowCall(Call("RowNumber", (), INTEGER), (), order_by, frame))


def _missing_columns(node: Project | TopN, child: Node, order: Order) -> list[Attribute]:
    """The columns that the order keys read and the node does not output."""
    return _columns_of(order.keys, child, node.output)


def _columns_of(keys: Iterable[OrderKey], child: Node, shown: Iterable[Attribute]) -> list[Attribute]:
    """The columns of `child` that the keys read and that are not among those shown."""
    read = {id for item in keys for id in references(item.key)} - {attribute.id for attribute in shown}
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
    if any(isinstance(key.type, ArrayType | StructType) for key in node.keys):
        # Native sorts order nested values differently.
        return Order(together=order.together, not_null=order.not_null, lost="Sort" if order.requested else "")
    stable = is_stable(node, order)
    order = replace(order, total=order.total and stable)
    if order.requested and not stable:
        before, lost = (), "Sort"
    if node.whole:
        keys = tuple(OrderKey(key) for key in node.keys)
        return Order((*keys, *before), None, order.not_null, lost, order.total)
    if order.together is None:
        # Each partition is sorted separately: only equal rows keep their relative order.
        agreed = frozenset(canonicalize(key.child) for key in node.keys)
        return replace(order, keys=_restrict_to(before, agreed), lost=lost)
    keys = tuple(OrderKey(key, order.together, requested=False) for key in node.keys)
    return replace(order, keys=(*keys, *_restrict_to(before, order.together)), lost=lost)


_RADIX = INTEGRAL | FRACTIONAL | {BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ}
_RADIX_DIGITS = 18


def is_stable(node: Sort, order: Order) -> bool:
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
