# SPDX-License-Identifier: Apache-2.0
"""File formats, one class each, found by the name that a scan or a write has for its format.

A file enters; what it holds, a table over it, or a writer of it leaves. Nothing outside this package knows what a
format's files look like, and nothing here knows of stages, tasks or transports.
"""

from __future__ import annotations

from volley.formats.base import FileFormat
from volley.formats.parquet import Parquet

FORMATS: dict[str, FileFormat] = {file_format.name: file_format for file_format in (Parquet(),)}


def format_of(name: str) -> FileFormat:
    """The format of a scan or a write that `support` has let pass."""
    return FORMATS[name]
