# SPDX-License-Identifier: Apache-2.0
"""A key for the output of a stage: equal keys mean the same rows in the same partitions, in any process, at any time.

It covers all that a worker gets to see of the stage: its plan with the files, their sizes and times; its output and its
layout; and the keys of its inputs. Ids and names of columns do not count, since Spark numbers them anew. A stage that
may give different rows the next time has no key, and neither has a stage that reads one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from volley.plan import nodes
from volley.plan.expressions import JVM_AGGREGATE, JVM_EXPRESSION, JVM_FIELD, JVM_ORDERED_AGGREGATE
from volley.plan.nodes import DataFile, FileScan, LocalRows, Node, OneRow, Range, StageInput, WriteFiles, walk
from volley.stages.graph import Stage
from volley.stages.layout import Layout
from volley.stages.repeatable import is_repeatable
from volley.stages.reuse import normal_form

_LEAVES = (FileScan, LocalRows, OneRow, Range, StageInput)
# What runs in a JVM is named by this process alone.
_OF_THIS_PROCESS = (JVM_AGGREGATE, JVM_EXPRESSION, JVM_FIELD, JVM_ORDERED_AGGREGATE)


def files_of(stage: Stage) -> tuple[DataFile, ...]:
    """The files whose versions a key must cover."""
    return tuple(file for node in walk(stage.plan) if isinstance(node, FileScan) for file in node.files)


def stage_key(
    stage: Stage, layout: Layout, inputs: Mapping[int, str | None], surroundings: tuple[str, ...]
) -> str | None:
    """The key of a stage, given those of the stages that it reads; None if it has none.

    `surroundings` is what else must be equal: versions of programs and of files.
    """
    if stage.output is None or not is_repeatable(stage) or not all(map(_is_plain, walk(stage.plan))):
        return None
    keys = [(node.stage, inputs.get(node.stage)) for node in stage.inputs]
    if any(key is None for _, key in keys):
        return None
    whole = tuple(sorted(stage.whole))
    shape = (
        stage.tasks,
        stage.ordered,
        whole,
        tuple(sorted(layout.whole)),
        layout.sliced,
        repr(layout.shares),
    )
    form = normal_form((stage.plan, stage.output))
    digest = hashlib.sha256()
    try:
        for part in _parts((form, shape, tuple(keys), surroundings)):
            digest.update(part)
    except _NotPlain:
        return None
    return digest.hexdigest()


def _is_plain(node: Node) -> bool:
    """Whether the plan alone tells what a node computes. Code of Python functions does not travel with the plan."""
    if not node.children:
        return isinstance(node, _LEAVES)
    return type(node).__module__ == nodes.__name__ and not isinstance(node, WriteFiles)


class _NotPlain(Exception):
    pass


def _parts(value: Any) -> Iterator[bytes]:
    """The value as bytes; different ones for different values."""
    match value:
        case ("Call", ("str", function), *_) if function in _OF_THIS_PROCESS:
            raise _NotPlain
        case (("str", "program"), _):
            # A cast of text has a program beside it, for texts without a plain form.
            raise _NotPlain
        case tuple():
            yield b"(%d" % len(value)
            for item in value:
                yield from _parts(item)
        case Enum():
            yield from _parts((type(value).__name__, value.name))
        case bytes():
            yield b"b%d:" % len(value) + value
        case str():
            encoded = value.encode("utf-8", "surrogatepass")
            yield b"s%d:" % len(encoded) + encoded
        case None | bool() | int() | float() | Decimal():
            yield f"{type(value).__name__}:{value!r};".encode()
        case _ if is_dataclass(value) and not isinstance(value, type):
            values = tuple(getattr(value, field.name) for field in fields(value))
            yield from _parts((type(value).__name__, *values))
        case _:
            raise _NotPlain
