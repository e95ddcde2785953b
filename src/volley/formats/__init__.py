# SPDX-License-Identifier: Apache-2.0
"""File formats, one class each, registered by the format name of a scan or a write.

A file enters; its footer, a table over it, or a writer for it leaves. Nothing outside this package knows the layout of
a format's files, and nothing here knows about stages, tasks or transports.
"""

from __future__ import annotations

from volley.formats.base import FileFormat
from volley.formats.parquet import Parquet

FORMATS: dict[str, FileFormat] = {file_format.name: file_format for file_format in (Parquet(),)}


def format_of(name: str) -> FileFormat:
    """The format of a scan or a write that `support` has accepted."""
    return FORMATS[name]
