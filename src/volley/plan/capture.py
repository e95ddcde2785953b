# SPDX-License-Identifier: Apache-2.0
"""Captures Spark's physical plan: one pass in the JVM serializes it, one loop here decodes it into nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import volley.plan.decode_as_of  # registers its decoders
import volley.plan.decode_sessions  # noqa: F401  registers its decoders
from volley.errors import CaptureError
from volley.plan.decode_expressions import Part, decode, type_of
from volley.plan.decode_nodes import DECODERS, TRANSPARENT, Operator, unknown
from volley.plan.decode_python import PYTHON_DECODED, PythonAccess, decode_python
from volley.plan.expressions import Alias, Call, Expression
from volley.plan.file_scans import file_scan
from volley.plan.gathered import sort_whole
from volley.plan.input_files import asks_for_file_names, file_name_columns, replace_file_names
from volley.plan.jvm import Java, enable_quick_ack
from volley.plan.nodes import Node, Project, Sort
from volley.plan.python_programs import PYTHON_SETTINGS
from volley.plan.read_rules import SETTINGS
from volley.plan.reader import Reader, Reading, Wanted, reader_of, wait_for_reader
from volley.plan.sources import SOURCES
from volley.plan.stores import AddStore, configuration_of, find_store
from volley.plan.zones import with_offsets


class Origins:
    """Maps captured nodes to their Spark operators, and expressions to those of Catalyst.

    Both are keyed by identity, so references to them are held.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Node, Callable[[], Java]]] = {}
        self._reading: Reading | None = None
        self._parts: Sequence[object] = ()
        self._part_numbers: dict[int, int] | None = None

    def add(self, node: Node, operator: Callable[[], Java]) -> None:
        self._found.setdefault(id(node), (node, operator))

    def add_expressions(self, reading: Reading, decoded: Sequence[object]) -> None:
        """`decoded` are all entries of the reading, in order."""
        self._reading, self._parts = reading, decoded

    def replace(self, old: Node, new: Node) -> None:
        """Let the operator of `old` be that of `new`, too."""
        if found := self._found.get(id(old)):
            self._found[id(new)] = (new, found[1])

    def expressions(self, wanted: Sequence[Expression]) -> Java | None:
        """A Java list of the Catalyst expressions from which these were decoded; None if one has no origin."""
        if self._part_numbers is None:
            self._part_numbers = {}
            for number, part in enumerate(self._parts):
                self._part_numbers.setdefault(id(part), number)
        numbers = [self._part_numbers.get(id(expression)) for expression in wanted]
        found = [number for number in numbers if number is not None]
        if self._reading is None or len(found) < len(numbers):
            return None
        return self._reading.expressions(found)

    def of(self, node: Node) -> Java | None:
        """The Spark operator of the node; None if no single operator corresponds to it."""
        found = self._found.get(id(node))
        return found[1]() if found else None


_WANTED = Wanted((*DECODERS, *TRANSPARENT, *PYTHON_DECODED), SETTINGS, PYTHON_DECODED, PYTHON_SETTINGS)


def prepare(gateway: Java) -> None:
    """Start compiling the plan reader of this JVM, so that the first query does not wait for it."""
    reader_of(gateway, _WANTED)


def plan_reader(gateway: Java) -> Reader:
    """The plan reader of this JVM. Raises CaptureError if it cannot be compiled."""
    return wait_for_reader(reader_of(gateway, _WANTED))


def capture(
    gateway: Java,
    physical_plan: Java,
    origins: Origins | None = None,
    *,
    python: Callable[[], PythonAccess] = PythonAccess,
) -> Node:
    """The plan that Spark would execute. Raises CaptureError rather than guess.

    `origins` records the Spark operator of each node. `python` is asked if the plan calls Python functions.
    """
    return decode_plan(gateway, read_plan(gateway, physical_plan), origins, python=python).plan


def read_plan(gateway: Java, physical_plan: Java, execution: Java | None = None) -> Reading:
    """Read the plan that Spark would execute. Raises CaptureError if it is too large.

    Without its `execution` the reading does not say whether an operator that the optimizer dropped observed the query.
    """
    enable_quick_ack(gateway)
    try:
        return plan_reader(gateway).read(physical_plan, execution)
    except ValueError as error:
        raise CaptureError(f"the serialized plan has an unexpected shape: {error!r}.") from error


@dataclass(frozen=True)
class Decoded:
    """`by_text_alone`: whether a plan with the same text would be decoded to the same, but for the ids of columns."""

    plan: Node
    by_text_alone: bool


def decode_plan(
    gateway: Java,
    reading: Reading,
    origins: Origins | None = None,
    *,
    python: Callable[[], PythonAccess] = PythonAccess,
    add_store: AddStore | None = None,
) -> Decoded:
    """The plan of a reading; see `capture`. `add_store` is as in `find_store`."""
    try:
        decoder = _Decoder(gateway, reading, Origins() if origins is None else origins, python, add_store)
        plan = decoder.decode()
    except (KeyError, IndexError, ValueError) as error:
        raise CaptureError(f"the serialized plan has an unexpected shape: {error!r}.") from error
    return Decoded(plan, reading.says_all and not decoder.asked_elsewhere)


class _Decoder:
    """Decodes one plan. An entry only refers to earlier entries."""

    def __init__(
        self,
        gateway: Java,
        reading: Reading,
        origins: Origins,
        python: Callable[[], PythonAccess],
        add_store: AddStore | None,
    ) -> None:
        self._gateway = gateway
        self._add_store = add_store
        self._reading = reading
        self._tables = reading.tables()
        self._origins = origins
        self._python = python
        self._gathered: list[Node] = []
        self._types = [type_of(value) for value in self._tables.types]
        self._built: list[Any] = []
        self._operators = 0
        self.asked_elsewhere = False
        """Whether the plan depends on more than its text: Java objects, or what may run where."""
        asks = asks_for_file_names(self._tables.entries)
        self._file_column = file_name_columns() if asks else None

    def decode(self) -> Node:
        built = self._built
        for entry in self._tables.entries:
            built.append(self._node(entry) if type(entry) is dict else self._part(entry))
        self._origins.add_expressions(self._reading, built)
        node: Node = built[-1]
        return node if self._file_column is None else replace_file_names(node, self._origins.replace)

    def _part(self, entry: list[Any]) -> Part:
        part = decode(entry, self._built, self._types)
        return with_offsets(part, self._zone_offsets) if type(part) is Call else part

    def _zone_offsets(self, zone: str) -> bytes | None:
        return plan_reader(self._gateway).zone_offsets(zone)

    def _node(self, entry: dict[str, Any]) -> Node:
        number, self._operators = self._operators, self._operators + 1
        children = tuple(self._built[child] for child in entry["children"])
        name = entry["operator"]
        if name in TRANSPARENT:
            below: Node = children[0]
            if name == "CoalesceExec" and entry["values"].get("numPartitions") == 1:
                self._gathered.append(below)
            return below
        expressions = {field: self._expressions(value) for field, value in entry["expressions"].items()}
        operator = Operator(name, expressions, entry["values"], children)
        node = self._decode_operator(operator, lambda: self._reading.operator(number))
        self._origins.add(node, lambda: self._reading.operator(number))
        node = sort_whole(node, self._gathered)
        if ordering := operator.all("ordering"):
            # The order of an algorithm of Spark's, which may stand for an ORDER BY.
            return Sort(ordering, whole=True, child=node)
        return node

    def _decode_operator(self, operator: Operator, java: Callable[[], Java]) -> Node:
        name = operator.name
        if decoder := DECODERS.get(name):
            return decoder(operator)
        if name in PYTHON_DECODED:
            self.asked_elsewhere = True
            return decode_python(operator, self._tables.functions, self._python(), self._gathered)
        if name == "FileSourceScanExec" or (name == "BatchScanExec" and "scan" in operator.values):
            column = self._file_column() if self._file_column is not None else None
            described = self._tables.scans[operator.value("scan")]
            find = partial(self._find_store, java)
            return file_scan(operator, described, find, self._zone_offsets, column)
        if name == "ReusedExchangeExec":
            return _decode_reused(operator)
        if source := SOURCES.get(name):
            self.asked_elsewhere = True
            return source(operator, self._gateway, java())
        return unknown(operator)

    def _find_store(self, scan: Callable[[], Java], root: str) -> str:
        # The text does not have the settings of the store.
        self.asked_elsewhere = True
        return find_store(self._gateway, configuration_of(scan()), root, self._add_store)

    def _expressions(self, value: Any) -> Any:
        """The expressions of a field, which holds one entry number, a list, or a list of lists."""
        if type(value) is list:
            return tuple(map(self._expressions, value))
        part: Part = self._built[value]
        return part


def _decode_reused(operator: Operator) -> Node:
    """A copy of the reused exchange, under the ids of this place. `stages` merges the copies again."""
    (shared,) = operator.children
    renamed = tuple(
        Alias(new.id, new.name, old) for new, old in zip(operator.all("output"), shared.output, strict=True)
    )
    return Project(renamed, shared)
