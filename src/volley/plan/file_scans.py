"""Scans of files: which files, how they are read, and whether Volley would read them as Spark does.

JSON does not have the relation of a scan, so the JVM's own object is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import unquote, urlparse

from volley.errors import CaptureError
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Attribute, Scalar
from volley.plan.jvm import Java, Jvm
from volley.plan.nodes import DataFile, FileScan, Node
from volley.plan.types import BOOLEAN, DATE, FRACTIONAL, INTEGRAL, STRING, DataType, DecimalType

_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_LISTING = "org.apache.spark.sql.execution.ScanFileListing"
_SESSION = "org.apache.spark.sql.classic.SparkSession"
_CONF = "org.apache.spark.sql.internal.SQLConf"
_FILE = "org.apache.spark.sql.execution.datasources.PartitionedFile"
_ROW = "org.apache.spark.sql.catalyst.InternalRow"
_STRUCT = "org.apache.spark.sql.types.StructType"
_SEQ = "scala.collection.immutable.Seq"

# Settings that change which rows or values a scan gives, with the values under which Volley reads as Spark does.
# Files with dates of the old calendar are refused when they are met, so both ways not to convert them are allowed.
_FALSE = frozenset({"false"})
_NO_REBASE = frozenset({"corrected", "exception"})
_ALLOWED_SETTINGS = {
    "spark.sql.caseSensitive": _FALSE,
    "spark.sql.files.ignoreCorruptFiles": _FALSE,
    "spark.sql.files.ignoreMissingFiles": _FALSE,
    "spark.sql.parquet.fieldId.read.enabled": _FALSE,
    "spark.sql.parquet.binaryAsString": _FALSE,
    "spark.sql.parquet.int96TimestampConversion": _FALSE,
    "spark.sql.parquet.datetimeRebaseModeInRead": _NO_REBASE,
    "spark.sql.parquet.int96RebaseModeInRead": _NO_REBASE,
    "spark.sql.legacy.parquet.nanosAsLong": _FALSE,
}
_HARMLESS_READ_OPTIONS = frozenset({"path", "paths", "serialization.format", "inferschema", "basepath"})


@dataclass(frozen=True)
class ScanFacts:
    """A file scan as Spark describes it; `files` has path, size and time of each, as text."""

    format: str
    bucketed: bool
    metadata_columns: bool
    partition_names: list[str]
    options: list[str]
    settings: dict[str, str]
    files: list[list[str]]

    def problem(self) -> str | None:
        """What about this scan Volley would not read as Spark does, if anything."""
        if self.format != "parquet":
            return f"format {self.format}"
        if self.bucketed:
            return "bucketed table"
        if self.metadata_columns:
            return "file metadata columns"
        for key, value in self.settings.items():
            if value.lower() not in _ALLOWED_SETTINGS[key]:
                return f"{key}={value}"
        for pair in self.options:
            key, _, value = pair.partition(" -> ")
            if key.lower() not in _HARMLESS_READ_OPTIONS:
                return f"read option {key}={value}"
        return None


class FileScanReader:
    """What every file scan of a plan reads, in one pass: its format, options and settings, and its files."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        facts = jvm.joined(2, *self._descriptions(), self._file_list())
        self._reader = jvm.function(jvm.otherwise(facts, ""))

    def read(self, plan: Java) -> list[str]:
        """For each leaf of the plan, from the left, what `decode` takes; nothing for leaves that are no file scan."""
        separator = self._jvm.separator(1)
        # Only leaves: each node that is no scan throws an exception, which is far slower than reading a scan.
        return str(plan.collectLeaves().map(self._reader).mkString(separator)).split(separator)

    def decode(self, operator: Operator, text: str, scan: Callable[[], Java]) -> Node:
        """The scan that `read` gave this text of; `scan` gives the JVM's own, for partition values alone."""
        facts = self._scan_facts(text)
        output: tuple[Attribute, ...] = operator.all("output")
        by_name = {attribute.name.lower(): attribute for attribute in output}
        problem = facts.problem()
        return FileScan(
            format=facts.format,
            files=() if problem else self._files(facts, by_name, scan),
            output=output,
            partition_columns=tuple(by_name[name] for name in facts.partition_names if name in by_name),
            filters=operator.all("dataFilters"),
            unsupported=problem,
        )

    def _files(
        self, facts: ScanFacts, by_name: dict[str, Attribute], scan: Callable[[], Java]
    ) -> tuple[DataFile, ...]:
        names = facts.partition_names
        wanted = [(index, by_name[name].type) for index, name in enumerate(names) if name in by_name]
        partitions = [[""]] * len(facts.files)
        if wanted and facts.files:
            partitions = self._partition_values(scan(), len(names))
        return tuple(
            DataFile(
                path=_plain_path(path),
                size_bytes=int(size),
                modified_ms=int(time),
                partition=tuple(_partition_value(values[index], kind) for index, kind in wanted),
            )
            for (path, size, time), values in zip(facts.files, partitions, strict=True)
        )

    def _partition_values(self, scan: Java, width: int) -> list[list[str]]:
        jvm = self._jvm
        schema = scan.relation().partitionSchema()
        files = jvm.root.scala.Predef.genericWrapArray(scan.selectedPartitions().toPartitionArray())
        values = jvm.chain(
            jvm.method(_FILE, "partitionValues", _ROW),
            jvm.method(_ROW, "toSeq", _SEQ, (_STRUCT, schema)),
            jvm.join(2),
        )
        texts = str(files.map(jvm.function(values)).mkString(jvm.separator(1))).split(jvm.separator(1))
        rows = [text.split(jvm.separator(2)) for text in texts]
        if any(len(row) != width for row in rows):
            raise CaptureError("the partition values of a scan could not be read.")
        return rows

    def _scan_facts(self, text: str) -> ScanFacts:
        if not text:
            raise CaptureError("the files of a scan could not be listed.")
        between = self._jvm.separator(2)
        format_class, bucketed, plain, schema, options, *settings, files = text.split(between)
        return ScanFacts(
            format=format_class.rpartition(".")[2].removesuffix("FileFormat").lower(),
            bucketed=bucketed == "true",
            metadata_columns=plain != "true",
            partition_names=[field["name"].lower() for field in json.loads(schema)["fields"]],
            options=[pair for pair in options.split(self._jvm.separator(3)) if pair],
            settings=dict(zip(_ALLOWED_SETTINGS, settings, strict=True)),
            files=[
                file.split(self._jvm.separator(4)) for file in files.split(self._jvm.separator(3)) if file
            ],
        )

    # ------------------------------------------------------------------------- what the JVM is asked

    def _descriptions(self) -> list[Java]:
        jvm = self._jvm
        relation = jvm.method(_SCAN, "relation", _RELATION)
        conf = jvm.chain(
            relation,
            jvm.method(_RELATION, "sparkSession", "org.apache.spark.sql.SparkSession"),
            jvm.method(_SESSION, "sessionState", "org.apache.spark.sql.internal.SessionState"),
            jvm.method("org.apache.spark.sql.internal.SessionState", "conf", _CONF),
        )
        text = "java.lang.String"
        return [
            jvm.chain(
                relation,
                jvm.method(_RELATION, "fileFormat", "org.apache.spark.sql.execution.datasources.FileFormat"),
                jvm.method("java.lang.Object", "getClass", "java.lang.Class"),
                jvm.method("java.lang.Class", "getName", text),
            ),
            jvm.method(_SCAN, "bucketedScan", "boolean"),
            jvm.chain(
                jvm.method(_SCAN, "fileConstantMetadataColumns", _SEQ),
                jvm.method("scala.collection.IterableOnceOps", "isEmpty", "boolean"),
            ),
            jvm.chain(
                relation, jvm.method(_RELATION, "partitionSchema", _STRUCT), jvm.method(_STRUCT, "json", text)
            ),
            jvm.chain(
                relation,
                jvm.method(_RELATION, "options", "scala.collection.immutable.Map"),
                jvm.join(3),
            ),
            *(
                jvm.chain(
                    conf, jvm.method(_CONF, "getConfString", text, (text, key), (text, next(iter(allowed))))
                )
                for key, allowed in _ALLOWED_SETTINGS.items()
            ),
        ]

    def _file_list(self) -> Java:
        jvm = self._jvm
        file = jvm.joined(
            4,
            jvm.method(_FILE, "urlEncodedPath", "java.lang.String"),
            jvm.method(_FILE, "fileSize", "long"),
            jvm.method(_FILE, "modificationTime", "long"),
        )
        return jvm.chain(
            jvm.method(_SCAN, "selectedPartitions", _LISTING),
            jvm.method(_LISTING, "toPartitionArray", f"[L{_FILE};"),
            jvm.static(
                "scala.Predef", "genericWrapArray", "scala.collection.mutable.ArraySeq", "java.lang.Object"
            ),
            jvm.each("scala.collection.mutable.ArraySeq", "java.lang.Object", jvm.function(file)),
            jvm.join(3),
        )


def _plain_path(url: str) -> str:
    """A local path as the operating system knows it; any other stays a URL."""
    parsed = urlparse(url)
    return unquote(parsed.path) if parsed.scheme in ("", "file") else url


def _partition_value(text: str, data_type: DataType) -> Scalar:
    """A value from the text of its internal form. A string `null` cannot be told from NULL, so it is refused."""
    if text == "null":
        if data_type == STRING:
            raise CaptureError(
                "a partition is named null, or has no value: Spark's text for both is the same."
            )
        return None
    if data_type == STRING:
        return text
    if data_type == BOOLEAN:
        return text == "true"
    if data_type in INTEGRAL or data_type == DATE:
        return int(text)
    if data_type in FRACTIONAL:
        return float(text)
    if isinstance(data_type, DecimalType):
        return Decimal(text)
    raise CaptureError(f"a partition column of type {data_type} is not readable.")
