# SPDX-License-Identifier: Apache-2.0
"""Ids of columns that Volley adds to plans. Catalyst counts its own up from zero and never comes here.

Each range has room for as many columns as a plan may need of its kind; ranges do not overlap.
"""

from __future__ import annotations

WINDOW_RESULT = 2**61
"""Window calls inside larger expressions, while a Window is lowered."""

ROW = 2**62
"""The constant column that stands for rows without columns in an exchange."""

WRITTEN_FILE = 2**62 + 1
"""What a write tells of each file."""

PARTITION_TEXT = 2**62 + 100
"""The texts of partition columns, by which files go to folders."""
