# SPDX-License-Identifier: Apache-2.0
"""A cache of lowered fragments, for queries that run again.

Fragments are identified by object identity: the driver keeps the plans of repeated queries, and so does a worker
(`rpc.start`). Files are checked as if the fragment were new, because a frame is only valid for the directory of links
from which it was made. Rows of other stages are those of each run: its tables get other streams.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from datafusion import DataFrame, SessionContext

from volley.errors import DataError
from volley.formats import streamed_format
from volley.lower.scope import Inputs, Scope, Streamed
from volley.lower.streams import StreamTable
from volley.lower.symlink_tables import Link
from volley.lru_cache import LruCache
from volley.plan.expressions import Call, Expression
from volley.plan.expressions import walk as walk_parts
from volley.plan.nodes import FileScan, Node, OneRow, Range, StageInput, expressions, walk


@dataclass(frozen=True)
class _Frame:
    """Holds `node` and `context`, so that no others can have their identities."""

    node: Node
    context: SessionContext
    frame: DataFrame
    links: tuple[Link, ...]
    tables: tuple[tuple[StageInput, StreamTable], ...]

    @property
    def key(self) -> tuple[int, int]:
        return id(self.node), id(self.context)


_frames: LruCache[tuple[int, int], _Frame] = LruCache(64)
# Plans name their files, and a table may have very many.
_MOST_FILES = 1_000


def find_plan(node: Node, context: SessionContext, inputs: Inputs, resources: ExitStack) -> DataFrame | None:
    """The frame of a fragment that was lowered before, over the same files; `resources` holds their links.

    What it reads of other stages is that of this run. So it is not there for others until `resources` are closed.
    """
    key = (id(node), id(context))
    found = _frames.get(key)
    if found is not None and found.tables:
        found = _frames.pop(key)
    if found is None:
        return None
    try:
        valid = all(link.enter(resources) == link.directory for link in found.links)
    except (OSError, DataError):
        return None  # lowering it again reports what is wrong
    if not valid:
        return None
    if found.tables:
        others = [inputs(read) for read, _ in found.tables]
        if not all(table.can_read(other) for (_, table), other in zip(found.tables, others, strict=True)):
            return None
        resources.callback(_give_back, found)
        for (_, table), other in zip(found.tables, others, strict=True):
            table.read_from(other)
    return found.frame


def keep_plan(node: Node, frame: DataFrame, scope: Scope) -> None:
    """Keep the frame if it reads only linked files and other stages: other rows are large, or unchecked.

    Nor is a frame kept that calls programs in the JVM, which end with their query, or that names very many files.
    """
    kept = _Frame(node, scope.context, frame, tuple(scope.links), tuple(scope.tables))
    if sum(len(link.files) for link in kept.links) > _MOST_FILES or not all(
        map(_can_be_read_again, walk(node))
    ):
        return
    if kept.tables:
        scope.resources.callback(_give_back, kept)
    else:
        _frames.put(kept.key, kept)


def _give_back(frame: _Frame) -> None:
    """Its run is over: the next one may use it. It must not hold rows until then."""
    for _, table in frame.tables:
        table.read_from(None)
    _frames.put(frame.key, frame)


def drop_plans() -> None:
    _frames.clear()


def _can_be_read_again(node: Node) -> bool:
    if any(map(_calls_program, expressions(node))):
        return False
    if isinstance(node, Streamed):
        return isinstance(node, StageInput)
    if isinstance(node, FileScan):
        return streamed_format(node) is None and not node.is_evolved
    return bool(node.children) or isinstance(node, Range | OneRow)


def _calls_program(expression: Expression) -> bool:
    return any(
        isinstance(part, Call) and part.option("program") is not None for part in walk_parts(expression)
    )
