# SPDX-License-Identifier: Apache-2.0
"""Ids of columns that Volley adds to plans. Catalyst counts its own up from zero and never comes here.

Each name begins a range that goes up to the next one. Two passes that took ids from one range would give two columns
of a plan one id, and one of them would be read as the other.
"""

from __future__ import annotations

CROSSING_ROW = 2**58
"""The constant column that rows without columns have between Spark and the native engine."""

ROW = 2**59
"""The constant columns that keep the number of rows without columns (`stages.row_counts`)."""

PLACE = 2**60
"""Columns that say the order in which rows came (`plan.order`)."""

WINDOW_RESULT = 2**61
"""Window calls inside larger expressions, while a Window is lowered."""

WRITTEN_FILE = 2**62
"""What a write tells of each file."""

PARTITION_TEXT = 2**62 + 2**61
"""The texts of partition columns, by which files go to folders."""
