# SPDX-License-Identifier: Apache-2.0
"""Plans that can run split by split, because each of their rows comes from exactly one row of a scan."""

from __future__ import annotations

from dataclasses import replace

from volley.plan.nodes import DataFile, FileScan, Node, SourceScan, with_children
from volley.plan.traits import below_row_by_row


def fed_scan(node: Node) -> FileScan | SourceScan | None:
    """The scan whose splits such a plan reads; None for any other plan and for files that every task reads whole.

    Filters and projections over files are allowed: the reader of a split applies them. Splits of other sources are
    read by the source's own code, which does not know plans.
    """
    if isinstance(node, SourceScan):
        return node
    node = below_row_by_row(node)
    return node if isinstance(node, FileScan) and not node.whole else None


def with_files(node: Node, files: tuple[DataFile, ...]) -> Node:
    """The plan, reading these files instead of its own."""
    if isinstance(node, FileScan):
        return replace(node, files=files)
    return with_children(node, tuple(with_files(child, files) for child in node.children))
