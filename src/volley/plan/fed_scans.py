# SPDX-License-Identifier: Apache-2.0
"""Plans that can be run split by split: each row of theirs comes from one row of a scan, whatever else is scanned."""

from __future__ import annotations

from dataclasses import replace

from volley.plan.nodes import DataFile, FileScan, Node, SourceScan, with_children
from volley.plan.traits import below_row_by_row


def fed_scan(node: Node) -> FileScan | SourceScan | None:
    """The scan whose splits such a plan reads; None for any other plan, and for files that every task reads whole.

    Filters and projections over files are part of it, since whoever reads a split applies them while it does. Splits of
    other sources are read by their own code, which knows nothing of plans.
    """
    if isinstance(node, SourceScan):
        return node
    node = below_row_by_row(node)
    return node if isinstance(node, FileScan) and not node.whole else None


def over_files(node: Node, files: tuple[DataFile, ...]) -> Node:
    """The same plan over these files instead."""
    if isinstance(node, FileScan):
        return replace(node, files=files)
    return with_children(node, tuple(over_files(child, files) for child in node.children))
