# SPDX-License-Identifier: Apache-2.0
"""Frames of fragments that this process has planned before, for fragments that are planned again.

A fragment is known by its identity: the driver keeps the plans of queries that are asked again. Files are checked as if
the fragment were new, because a frame is only valid for the directory of links from which it was made.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from datafusion import DataFrame, SessionContext

from volley.errors import DataError
from volley.formats import streamed_format
from volley.lower.scope import Streamed
from volley.lower.symlink_tables import Link
from volley.plan.expressions import Call, Expression
from volley.plan.expressions import walk as walk_parts
from volley.plan.nodes import FileScan, Node, OneRow, Range, expressions, walk
from volley.recent import Recent


@dataclass(frozen=True)
class _Frame:
    """Holds `node` and `context`, so that no others can have their identities."""

    node: Node
    context: SessionContext
    frame: DataFrame
    links: tuple[Link, ...]


_frames: Recent[tuple[int, int], _Frame] = Recent(64)
# Plans name their files, and a table may have very many.
_MOST_FILES = 1_000


def recent_frame(node: Node, context: SessionContext, resources: ExitStack) -> DataFrame | None:
    """The frame of a fragment that was lowered before, over the same files; `resources` holds their links."""
    found = _frames.get((id(node), id(context)))
    if found is None:
        return None
    try:
        valid = all(link.enter(resources) == link.directory for link in found.links)
    except (OSError, DataError):
        return None  # a new one says what is wrong
    return found.frame if valid else None


def keep_frame(node: Node, context: SessionContext, frame: DataFrame, links: tuple[Link, ...]) -> None:
    """Keep the frame if it reads nothing but linked files: other rows are those of one task, large, or unchecked.

    Nor is a frame kept that calls programs in the JVM, which end with their query, or that names very many files.
    """
    if sum(len(link.files) for link in links) > _MOST_FILES:
        return
    if all(map(_can_be_read_again, walk(node))):
        _frames.put((id(node), id(context)), _Frame(node, context, frame, links))


def drop_frames() -> None:
    _frames.clear()


def _can_be_read_again(node: Node) -> bool:
    if isinstance(node, Streamed) or any(map(_calls_program, expressions(node))):
        return False
    if isinstance(node, FileScan):
        return streamed_format(node) is None
    return bool(node.children) or isinstance(node, Range | OneRow)


def _calls_program(expression: Expression) -> bool:
    return any(
        isinstance(part, Call) and part.option("program") is not None for part in walk_parts(expression)
    )
