# SPDX-License-Identifier: Apache-2.0
"""File scans: which files, with which options, and whether Volley reads them exactly as Spark does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlparse

from volley.errors import CaptureError
from volley.plan.decode_expressions import scalar
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Attribute, Scalar
from volley.plan.nodes import DataFile, FileScan, Node
from volley.plan.types import TIMESTAMP, TIMESTAMP_NTZ, DataType

# Settings that change the rows or values of a scan, with the values under which Volley reads what Spark reads.
# Files with dates in the old calendar are refused when read, so both modes that do not rebase are allowed.
_FALSE = frozenset({"false"})
_NO_REBASE = frozenset({"corrected", "exception"})
_OF_ALL_FORMATS = {
    "spark.sql.caseSensitive": _FALSE,
    "spark.sql.files.ignoreCorruptFiles": _FALSE,
    "spark.sql.files.ignoreMissingFiles": _FALSE,
}
_OF_PARQUET = {
    "spark.sql.parquet.fieldId.read.enabled": _FALSE,
    "spark.sql.parquet.binaryAsString": _FALSE,
    "spark.sql.parquet.int96TimestampConversion": _FALSE,
    "spark.sql.parquet.datetimeRebaseModeInRead": _NO_REBASE,
    "spark.sql.parquet.int96RebaseModeInRead": _NO_REBASE,
    "spark.sql.legacy.parquet.nanosAsLong": _FALSE,
}
_HARMLESS_READ_OPTIONS = frozenset({"path", "paths", "serialization.format", "inferschema", "basepath"})


@dataclass(frozen=True)
class ReadRules:
    """When a format reads what Spark reads: settings with their allowed values, and read options without effect.

    They are defined here and not in `formats`, because capture asks Spark for them.
    """

    settings: Mapping[str, frozenset[str]]
    options: frozenset[str] = _HARMLESS_READ_OPTIONS


READ_RULES = {"parquet": ReadRules({**_OF_ALL_FORMATS, **_OF_PARQUET})}
SETTINGS = tuple(dict.fromkeys(key for rules in READ_RULES.values() for key in rules.settings))


@dataclass(frozen=True)
class ScanFacts:
    """A file scan as `PlanReader.java` writes it.

    `files` lists path, size, modification time and partition index of each file; `partitions` the values of each
    partition, as text.
    """

    format: str
    bucketed: bool
    metadata_columns: bool
    partition_names: list[str]
    options: dict[str, str]
    settings: dict[str, str]
    files: list[tuple[str, int, int, int]]
    partitions: list[list[str | bool | None]]

    @property
    def format_name(self) -> str:
        """The name in `formats`; Spark gives the class name."""
        return self.format.removesuffix("FileFormat").lower()

    def problem(self) -> str | None:
        """Why Volley might not read what Spark reads; None if it does."""
        rules = READ_RULES.get(self.format_name)
        if rules is None:
            return f"format {self.format_name}"
        if self.bucketed:
            return "bucketed table"
        if self.metadata_columns:
            return "file metadata columns"
        for key, allowed in rules.settings.items():
            if self.settings[key].lower() not in allowed:
                return f"{key}={self.settings[key]}"
        for key, value in self.options.items():
            if key.lower() not in rules.options:
                return f"read option {key}={value}"
        return None


def file_scan(operator: Operator, described: dict[str, Any] | None) -> Node:
    """Decode a file scan. `described` is None if Spark could not list its files."""
    if described is None:
        raise CaptureError("the files of a scan could not be listed.")
    facts = ScanFacts(**described)
    output: tuple[Attribute, ...] = operator.all("output")
    by_name = {attribute.name.lower(): attribute for attribute in output}
    names = [name.lower() for name in facts.partition_names]
    columns = [(index, by_name[name]) for index, name in enumerate(names) if name in by_name]
    problem = facts.problem()
    return FileScan(
        format=facts.format_name,
        files=() if problem else _files(facts, [(index, column.type) for index, column in columns]),
        output=output,
        partition_columns=tuple(column for _, column in columns),
        filters=operator.all("dataFilters"),
        unsupported=problem,
    )


def _files(facts: ScanFacts, wanted: list[tuple[int, DataType]]) -> tuple[DataFile, ...]:
    partitions = [
        tuple(_partition_value(values[index], kind) for index, kind in wanted) for values in facts.partitions
    ]
    return tuple(
        DataFile(_plain_path(path), size, time, partitions[partition])
        for path, size, time, partition in facts.files
    )


def _partition_value(text: str | bool | None, data_type: DataType) -> Scalar:
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        raise CaptureError(f"a partition column of type {data_type} is not readable.")
    return scalar(text, data_type)


def _plain_path(url: str) -> str:
    """Turn a `file:` URL into a local path; leave other URLs unchanged."""
    parsed = urlparse(url)
    return unquote(parsed.path) if parsed.scheme in ("", "file") else url
