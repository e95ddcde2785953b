# SPDX-License-Identifier: Apache-2.0
"""Splits: what the scans of a query read, discovered by the coordinator and handed to tasks piece by piece.

A scan of a plan enters; splits, as opaque bytes, leave for the tasks that request them, and batches leave the readers
that tasks use. Only a source and its reader understand a split; this package must never know a transport or a worker.
"""

from volley.splits.source import Estimate, Split, SplitReader, SplitSource

__all__ = ["Estimate", "Split", "SplitReader", "SplitSource"]
