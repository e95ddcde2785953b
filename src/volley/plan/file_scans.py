# SPDX-License-Identifier: Apache-2.0
"""File scans: which files, with which options, and whether Volley reads them exactly as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlparse

from volley.errors import CaptureError
from volley.plan.decode_expressions import scalar
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Attribute, Expression, Scalar, references
from volley.plan.nodes import DataFile, DeleteFile, FileScan, Node, StoredColumn
from volley.plan.read_rules import (
    CORRUPT_RECORD,
    CORRUPT_RECORD_OPTION,
    IGNORES_MISSING_IDS,
    KEEPS_TYPES,
    NEEDS_IDS,
    READ_RULES,
    READS_BY_ID,
    SESSION_ZONE,
    ZONE_OFFSETS,
    ZONE_OPTION,
)
from volley.plan.spark_options import may_matter
from volley.plan.stored_columns import (
    POSITION,
    NotNative,
    has_field_ids,
    read_iceberg_columns,
    read_spark_columns,
)
from volley.plan.types import BINARY, TIMESTAMP, DataType, DecimalType
from volley.plan.zones import UTC
from volley.spark_versions.registry import current
from volley.storage.s3a import Unmapped


@dataclass(frozen=True)
class ScanFacts:
    """A file scan as `PlanReader.java` writes it.

    `metadata` are the places in the output of columns that Spark derives from the file itself. `stored` is the schema
    of the columns that are read and their defaults for older files, if one has a default, or a Parquet field id;
    `iceberg` is the schema of an Iceberg table. `refused` says why the scan does more than read, and `unreachable` why
    only Spark reads from the file system. `files` lists path, size, modification time and partition index of each
    file; `partitions` the values of each partition, as text; `deletes` the number of a data file, and path, size, name
    of the data file and maybe the place of what names deleted rows of it. Files of tables that are `immutable` have no
    times of their own.
    """

    format: str
    immutable: bool
    bucketed: bool
    metadata: list[int]
    stored: dict[str, Any] | None
    data_names: list[str]
    partition_names: list[str]
    refused: str | None
    options: dict[str, str]
    settings: dict[str, str]
    files: list[tuple[str, int, int, int]]
    partitions: list[list[str | bool | None]]
    iceberg: dict[str, Any] | None = None
    unreachable: str | None = None
    deletes: list[list[Any]] = field(default_factory=list)

    @property
    def format_name(self) -> str:
        """The name in `formats`; Spark gives the class name."""
        return self.format.removesuffix("FileFormat").removesuffix("Scan").lower()

    def problem(self, output: Sequence[Attribute]) -> str | None:
        """Why Volley might not read what Spark reads; None if it does. `output` are the columns that it reads."""
        rules = READ_RULES.get(self.format_name)
        if rules is None:
            return f"format {self.format_name}"
        if self.refused:
            return self.refused
        if self.format_name == _AVRO and not current().widens_columns:
            return "Avro files in the types that they have"
        for place, column in enumerate(output):
            if column.name == POSITION and self.format_name != _PARQUET:
                return "metadata column row_index"
            if place in self.metadata and column.name not in _METADATA:
                return f"metadata column {column.name}"
        if self.format_name != _PARQUET and self.stored and any(self.stored["defaults"]):
            return "a column with a default value"
        read = [column for place, column in enumerate(output) if place not in self.metadata]
        partitioned = {name.lower() for name in self.partition_names}
        # Spark itself has read the values of partitions.
        stored = [column for column in read if column.name.lower() not in partitioned]
        types = [column.type for column in stored]
        for key, setting in rules.settings.items():
            if not setting.permits(self.settings[key], types):
                return f"{key}={self.settings[key]}"
        for key, value in self.options.items():
            option = rules.options.get(key.lower())
            # Those of tables in lakes mean more than their files.
            is_ignored = not self.immutable and not may_matter(self.format_name, key)
            if not is_ignored and (option is None or not option.permits(value, types)):
                return f"read option {key}={value}"
        if [column.name for column in stored] == [self._corrupt_column]:
            return "only the column of corrupt records"
        for column in stored:
            if not rules.reads(column.type):
                return f"column {column.name} of type {column.type}"
        return None

    @property
    def _corrupt_column(self) -> str | None:
        """The column in which a text format keeps malformed records. Spark refuses to read nothing else."""
        if CORRUPT_RECORD not in READ_RULES[self.format_name].settings:
            return None
        return self._given.get(CORRUPT_RECORD_OPTION, self.settings[CORRUPT_RECORD])

    def zone(self, output: Sequence[Attribute]) -> str | None:
        """The zone of the timestamps that a text format reads; None for UTC, and where none is read."""
        if SESSION_ZONE not in READ_RULES[self.format_name].settings:
            return None
        zone = self._given.get(ZONE_OPTION, self.settings[SESSION_ZONE])
        return zone if zone not in UTC and any(column.type == TIMESTAMP for column in output) else None

    @property
    def _given(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.options.items()}

    def carried(self, offsets: bytes | None) -> tuple[tuple[str, str], ...]:
        """The settings and options that change how the files are read; an option overrides nothing here."""
        carried = READ_RULES[self.format_name].carried
        given = self.settings | self._given
        if offsets is not None:
            carried, given = carried | {ZONE_OFFSETS}, given | {ZONE_OFFSETS: offsets.hex()}
        if self.format_name == _PARQUET and self.iceberg is None and not current().widens_columns:
            # Workers check the files, and need not have the driver's release of Spark.
            carried, given = carried | {KEEPS_TYPES}, given | {KEEPS_TYPES: "true"}
        if self.needs_ids:
            carried, given = carried | {NEEDS_IDS}, given | {NEEDS_IDS: "true"}
        return tuple(sorted((key, value) for key, value in given.items() if key in carried))

    @property
    def needs_ids(self) -> bool:
        """Whether files without field ids are an error of Spark's, or have other columns by rules of Iceberg's."""
        if self.iceberg is not None:
            return True
        ignores = self.settings.get(IGNORES_MISSING_IDS, "").lower() == "true"
        return self.stored is not None and not ignores and has_field_ids(self.stored["schema"])

    def stored_columns(
        self, output: Sequence[Attribute], filters: Sequence[Expression]
    ) -> tuple[StoredColumn, ...]:
        """Where the files have the columns. NotNative if only Spark reads one."""
        columns = {column.name: column.type for column in output}
        if self.iceberg is not None:
            return read_iceberg_columns(self.iceberg, columns)
        found = (StoredColumn(POSITION, is_position=True),) if POSITION in columns else ()
        if self.format_name != _PARQUET or self.stored is None:
            return found
        by_id = self.settings[READS_BY_ID] == "true"
        used = frozenset[int]().union(*map(references, filters))
        filtered = frozenset(column.name for column in output if column.id in used)
        return found + read_spark_columns(
            self.stored["schema"], self.stored["defaults"], columns, filtered, by_id
        )


_PARQUET = "parquet"
_AVRO = "avro"
_METADATA: dict[str, Callable[[str, int, int], Scalar]] = {
    # Of a path; `input_file_name()` is the URL.
    "file_path": lambda url, size_bytes, modified_ms: print_path(url),
    "file_name": lambda url, size_bytes, modified_ms: url.rpartition("/")[2],
    "file_size": lambda url, size_bytes, modified_ms: size_bytes,
    "file_modification_time": lambda url, size_bytes, modified_ms: 1000 * modified_ms,
}
"""The columns of `_metadata` that are the same in all rows of a file, from its URL, size and time."""


def print_path(url: str) -> str:
    """As Hadoop prints a path: with one slash if there is no authority, where a URL has three."""
    scheme, separator, path = url.partition(":///")
    return f"{scheme}:/{path}" if separator and "/" not in scheme else url


def file_scan(
    operator: Operator,
    described: dict[str, Any] | None,
    find_store: Callable[[str], str],
    find_offsets: Callable[[str], bytes | None],
    file_column: Attribute | None = None,
) -> Node:
    """Decode a file scan. `described` is None if Spark could not list its files.

    `find_store` gives the id of the object store of a URL, or raises Unmapped; `find_offsets` the encoded offsets of a
    time zone, or None if it is not known. With a `file_column`, which is not part of the output, the
    last partition column is the URL of the file.
    """
    if described is None:
        raise CaptureError("the files of a scan could not be listed.")
    facts = ScanFacts(**described)
    output: tuple[Attribute, ...] = operator.all("output")
    metadata = tuple(output[place] for place in facts.metadata)
    by_name = {column.name.lower(): column for column in output if column not in metadata}
    names = [name.lower() for name in facts.partition_names]
    columns = [(index, by_name[name]) for index, name in enumerate(names) if name in by_name]
    problem, unreachable = facts.problem(output), None
    of_file = [_METADATA[column.name] for column in metadata if column.name in _METADATA]
    if file_column is not None:
        of_file.append(lambda url, size_bytes, modified_ms: url)
    files: tuple[DataFile, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    stored: tuple[StoredColumn, ...] = ()
    if not problem:
        try:
            stored = facts.stored_columns(output, operator.all("dataFilters"))
        except NotNative as error:
            problem = str(error)
    if not problem and facts.iceberg is not None and file_column is not None:
        # Iceberg gives the location as its table has it, which may be no URL.
        problem = "input_file_name() of an Iceberg table"
    if not problem and facts.unreachable:
        unreachable = facts.unreachable
    elif not problem:
        zone = facts.zone(output)
        offsets = None if zone is None else find_offsets(zone)
        if zone is not None and offsets is None:
            raise CaptureError(f"the time zone {zone} is not known.")
        options = facts.carried(offsets)
        try:
            files = _files(facts, columns, of_file, find_store)
        except Unmapped as error:
            unreachable = str(error)
    return FileScan(
        format=facts.format_name,
        files=files,
        output=output,
        partition_columns=(
            *(column for _, column in columns),
            *metadata,
            *([] if file_column is None or problem else [file_column]),
        ),
        filters=operator.all("dataFilters"),
        unsupported=problem,
        options=options,
        file_columns=() if problem else tuple(facts.data_names),
        prunings=() if problem else operator.all("prunings"),
        unreachable=unreachable,
        bucketed=facts.bucketed or facts.iceberg is not None,
        stored=stored,
    )


def _files(
    facts: ScanFacts,
    columns: list[tuple[int, Attribute]],
    of_file: list[Callable[[str, int, int], Scalar]],
    find_store: Callable[[str], str],
) -> tuple[DataFile, ...]:
    partitions = [
        tuple(_partition_value(values[index], column.type) for index, column in columns)
        for values in facts.partitions
    ]
    stores: dict[str, str] = {"": ""}

    def store_of(path: str) -> str:
        root = _root(path)
        if root not in stores:
            stores[root] = find_store(root)
        return stores[root]

    deletes: dict[int, list[DeleteFile]] = {}
    for number, url, size, target, *place in facts.deletes:
        path = plain_path(url)
        deletes.setdefault(number, []).append(DeleteFile(path, size, target, store_of(path), *place))
    found = []
    for number, (url, size, time, partition) in enumerate(facts.files):
        path = plain_path(url)
        values = (*partitions[partition], *(read(url, size, time) for read in of_file))
        time = 0 if facts.immutable else time
        found.append(DataFile(path, size, time, values, store_of(path), tuple(deletes.get(number, ()))))
    if len({bool(file.store) for file in found}) > 1:
        raise Unmapped("local files and objects in one scan")
    return tuple(found)


def _partition_value(text: str | bool | None, data_type: DataType) -> Scalar:
    if data_type == BINARY:
        raise CaptureError(f"a partition column of type {data_type} is not readable.")
    if (
        isinstance(data_type, DecimalType)
        and isinstance(text, str)
        and Decimal(text).as_tuple().exponent != -data_type.scale
    ):
        # Spark takes the digits of such a value for those of the column: `k=7` is 0.7 in a DECIMAL(5,1).
        raise CaptureError(f"the partition value {text} does not have the scale of {data_type}.")
    return scalar(text, data_type)


def plain_path(url: str) -> str:
    """Turn a `file:` URL into a local path, and decode any other."""
    parsed = urlparse(url)
    return unquote(parsed.path) if parsed.scheme in ("", "file") else unquote(url)


def _root(path: str) -> str:
    """The scheme and the authority of a URL; empty for a local path."""
    if path.startswith("/"):
        return ""
    # A file system without an authority may print its paths with one slash.
    scheme, _, rest = path.partition(":")
    authority = rest.removeprefix("//").partition("/")[0] if rest.startswith("//") else ""
    return f"{scheme}://{authority}"
