# SPDX-License-Identifier: Apache-2.0
"""Ids of columns that Volley adds to plans. Catalyst counts its ids up from zero and never gets this far.

Each constant starts a range that ends at the next one. If two passes shared a range, two columns of a plan could get
the same id, and one would be read as the other.
"""

from __future__ import annotations

INPUT_FILE = 2**56
"""The files of scans below `input_file_name()`."""

PYTHON_ARGUMENT = 2**57
"""Computed arguments of Python functions."""

COGROUPED = 2**57 + 2**56
"""The columns of both sides of a cogrouped map."""

FRAME_BOUND = 2**57 + 2**56 + 2**54
"""Counts of rows, for the frames of Python functions in windows."""

TABLE_KEY = 2**57 + 2**56 + 2**55
"""The keys by which the rows of table functions are grouped and sorted."""

CROSSING_ROW = 2**58
"""The constant column that carries rows without columns between Spark and the native engine."""

SESSION = 2**58 + 2**57
"""Columns that find the sessions of rows (`plan.decode_sessions`)."""

AS_OF = 2**58 + 2**57 + 2**55
"""Columns that find the matches of as-of joins (`plan.decode_as_of`)."""

PARTITION_ROWS = 2**58 + 2**57 + 2**56
"""Window partitions as lists of rows (`support.whole_partitions`)."""

OBSERVED = 2**58 + 2**57 + 2**56 + 2**55
"""Counts of observed rows (`plan.observed_metrics`)."""

ROW = 2**59
"""Constant columns that preserve the number of rows without columns (`stages.row_counts`)."""

PARTITION_VALUE = 2**59 + 2**58
"""Values that depend on the partitions of rows (`plan.partition_values`)."""

ROW_PLACE = 2**59 + 2**58 + 2**57
"""The places of rows in Spark's partitions (`plan.partition_aggregates`)."""

PLACE = 2**60
"""Columns that record the order of rows (`plan.order`)."""

CACHED_PLACE = 2**60 + 2**59
"""The places of rows in cached frames whose order matters."""

FILE_NUMBER = 2**60 + 2**59 + 2**58
"""The file into which a row is written (`bridge.write`)."""

WINDOW_RESULT = 2**61
"""Window calls inside larger expressions, during the lowering of a Window."""

WRITTEN_FILE = 2**62
"""The columns in which a write reports each file."""

PARTITION_TEXT = 2**62 + 2**61
"""Partition values as text, which name the folders of files."""
