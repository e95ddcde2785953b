# SPDX-License-Identifier: Apache-2.0
"""From a DataFrame to its plan as plain data: one pass in the JVM writes all of it, one loop here makes nodes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volley.errors import CaptureError
from volley.plan.decode_expressions import Part, decode, type_of
from volley.plan.decode_nodes import DECODERS, TRANSPARENT, Operator, unknown
from volley.plan.expressions import Alias
from volley.plan.file_scans import SETTINGS, file_scan
from volley.plan.jvm import Java, answer_promptly
from volley.plan.nodes import Node, Project
from volley.plan.reader import Reader, Reading, finished, reader_of
from volley.plan.sources import SOURCES


class Origins:
    """Which operator of Spark each captured node stands for. Nodes are known by identity, so they are kept."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Node, Callable[[], Java]]] = {}

    def add(self, node: Node, operator: Callable[[], Java]) -> None:
        self._found.setdefault(id(node), (node, operator))

    def of(self, node: Node) -> Java | None:
        """The operator; None for a node that no single one stands for."""
        found = self._found.get(id(node))
        return found[1]() if found else None


_READABLE = (*DECODERS, *TRANSPARENT)


def prepare(gateway: Java) -> None:
    """Begin to compile what reads the plans of this JVM, so that the first query need not wait for it."""
    reader_of(gateway, _READABLE, SETTINGS)


def plan_reader(gateway: Java) -> Reader:
    """What reads the plans of this JVM. Raises CaptureError where it cannot be compiled."""
    return finished(reader_of(gateway, _READABLE, SETTINGS))


def capture(gateway: Java, physical_plan: Java, origins: Origins | None = None) -> Node:
    """The plan that Spark would execute. Raises CaptureError where something could only be guessed.

    `origins` learns where each node comes from.
    """
    answer_promptly(gateway)
    try:
        reading = plan_reader(gateway).read(physical_plan)
        return _Decoder(gateway, reading, Origins() if origins is None else origins).decode()
    except (KeyError, IndexError, ValueError) as error:
        raise CaptureError(f"what was read of a plan has another shape than expected: {error!r}.") from error


class _Decoder:
    """Decodes one plan: each entry is made of earlier ones."""

    def __init__(self, gateway: Java, reading: Reading, origins: Origins) -> None:
        self._gateway = gateway
        self._reading = reading
        self._origins = origins
        self._types = [type_of(value) for value in reading.types]
        self._built: list[Any] = []
        self._operators = 0

    def decode(self) -> Node:
        built, types = self._built, self._types
        for entry in self._reading.entries:
            built.append(self._node(entry) if type(entry) is dict else decode(entry, built, types))
        node: Node = built[-1]
        return node

    def _node(self, entry: dict[str, Any]) -> Node:
        number, self._operators = self._operators, self._operators + 1
        children = tuple(self._built[child] for child in entry["children"])
        name = entry["operator"]
        if name in TRANSPARENT:
            below: Node = children[0]
            return below
        expressions = {field: self._expressions(value) for field, value in entry["expressions"].items()}
        operator = Operator(name, expressions, entry["values"], children)
        node = self._decoded(operator, lambda: self._reading.operator(number))
        self._origins.add(node, lambda: self._reading.operator(number))
        return node

    def _decoded(self, operator: Operator, java: Callable[[], Java]) -> Node:
        name = operator.name
        if decoder := DECODERS.get(name):
            return decoder(operator)
        if name == "FileSourceScanExec":
            return file_scan(operator, self._reading.scans[operator.value("scan")])
        if name == "ReusedExchangeExec":
            return _reused(operator)
        if source := SOURCES.get(name):
            return source(operator, self._gateway, java())
        return unknown(operator)

    def _expressions(self, value: Any) -> Any:
        """A field of numbers: one of them, a list, or a list of lists."""
        if type(value) is list:
            return tuple(map(self._expressions, value))
        part: Part = self._built[value]
        return part


def _reused(operator: Operator) -> Node:
    """An exchange that stands elsewhere too, under other ids here; `stages` merges the two again."""
    (shared,) = operator.children
    renamed = tuple(
        Alias(new.id, new.name, old) for new, old in zip(operator.all("output"), shared.output, strict=True)
    )
    return Project(renamed, shared)
