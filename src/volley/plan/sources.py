"""The leaves of a plan: what they read must be asked of the JVM objects themselves, JSON does not have it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from urllib.parse import unquote, urlparse

import pyarrow as pa

from volley.errors import CaptureError
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute, Scalar
from volley.plan.held import hold
from volley.plan.jvm import Java, Jvm
from volley.plan.nodes import HERE, DataFile, FileScan, LocalRows, Node, Range, SourceScan
from volley.plan.types import (
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGRAL,
    LONG,
    STRING,
    DataType,
    DecimalType,
    is_carried,
    to_arrow,
)

_FILE = "org.apache.spark.sql.execution.datasources.PartitionedFile"
_ROW = "org.apache.spark.sql.catalyst.InternalRow"
_STRUCT = "org.apache.spark.sql.types.StructType"
_SEQ = "scala.collection.immutable.Seq"
_PYTHON_SCAN = "org.apache.spark.sql.execution.datasources.v2.python.PythonScan"
_ROWS_A_BATCH = 65_536

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


class SourceReader:
    """Reads scans, local rows and ranges through one gateway."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._paths = jvm.function(jvm.method(_FILE, "urlEncodedPath", "java.lang.String"))
        self._sizes = jvm.function(jvm.method(_FILE, "fileSize", "long"))
        self._times = jvm.function(jvm.method(_FILE, "modificationTime", "long"))

    def decoder(self, name: str) -> Callable[[Operator, Java], Node] | None:
        return {
            "FileSourceScanExec": self._file_scan,
            "LocalTableScanExec": self._local_rows,
            # What SHOW, DESCRIBE and the like found out: the command itself has run already.
            "CommandResultExec": self._local_rows,
            "RangeExec": self._range,
            "BatchScanExec": self._batch_scan,
        }.get(name)

    # -------------------------------------------------------------------------------------- files

    def _file_scan(self, operator: Operator, scan: Java) -> Node:
        relation = scan.relation()
        format_name = relation.fileFormat().getClass().getSimpleName().removesuffix("FileFormat").lower()
        partition_schema = relation.partitionSchema()
        partition_names = [name.lower() for name in partition_schema.fieldNames()]
        output: tuple[Attribute, ...] = operator.all("output")
        by_name = {attribute.name.lower(): attribute for attribute in output}
        problem = self._problem(scan, relation, format_name)
        files = () if problem else self._files(scan, partition_schema, partition_names, by_name)
        return FileScan(
            format=format_name,
            files=files,
            output=output,
            partition_columns=tuple(by_name[name] for name in partition_names if name in by_name),
            filters=operator.all("dataFilters"),
            unsupported=problem,
        )

    def _problem(self, scan: Java, relation: Java, format_name: str) -> str | None:
        """What about this scan Volley would not read as Spark does, if anything."""
        if format_name != "parquet":
            return f"format {format_name}"
        if scan.bucketedScan():
            return "bucketed table"
        if not scan.fileConstantMetadataColumns().isEmpty():
            return "file metadata columns"
        conf = relation.sparkSession().sessionState().conf()
        for key, allowed in _ALLOWED_SETTINGS.items():
            value = conf.getConfString(key, next(iter(allowed)))
            if value.lower() not in allowed:
                return f"{key}={value}"
        for pair in relation.options().mkString(self._jvm.separator(1)).split(self._jvm.separator(1)):
            key, _, value = pair.partition(" -> ")
            if key and key.lower() not in _HARMLESS_READ_OPTIONS:
                return f"read option {key}={value}"
        return None

    def _files(
        self, scan: Java, schema: Java, names: list[str], by_name: dict[str, Attribute]
    ) -> tuple[DataFile, ...]:
        array = scan.selectedPartitions().toPartitionArray()
        found = self._jvm.root.scala.Predef.genericWrapArray(array).toSeq()
        count = found.size()
        if count == 0:
            return ()
        wanted = [(index, by_name[name].type) for index, name in enumerate(names) if name in by_name]
        partitions = self._partition_values(found, schema, len(names)) if wanted else [[]] * count
        columns = (self._read(found, reader) for reader in (self._paths, self._sizes, self._times))
        return tuple(
            DataFile(
                path=_plain_path(path),
                size_bytes=int(size),
                modified_ms=int(time),
                partition=tuple(_partition_value(values[index], kind) for index, kind in wanted),
            )
            for path, size, time, values in zip(*columns, partitions, strict=True)
        )

    def _partition_values(self, files: Java, schema: Java, width: int) -> list[list[str]]:
        jvm = self._jvm
        values = jvm.chain(
            jvm.method(_FILE, "partitionValues", _ROW),
            jvm.method(_ROW, "toSeq", _SEQ, (_STRUCT, schema)),
            jvm.join(2),
        )
        rows = [text.split(jvm.separator(2)) for text in self._read(files, jvm.function(values))]
        if any(len(row) != width for row in rows):
            raise CaptureError("the partition values of a scan could not be read.")
        return rows

    def _read(self, items: Java, function: Java) -> list[str]:
        separator = self._jvm.separator(1)
        return str(items.map(function).mkString(separator)).split(separator)

    # ------------------------------------------------------------------------------ Python data sources

    def _batch_scan(self, operator: Operator, scan: Java) -> Node:
        source = scan.scan()
        if source.getClass().getName() != _PYTHON_SCAN:
            return unknown(operator, source.getClass().getSimpleName())
        made = _field(_field(source, "ds"), "dataSourceInPython")
        if made is None:
            raise CaptureError("a Python data source was planned without being made.")
        # Bytes that the user's program pickled for this session; whoever reads the source opens them.
        reader = f"{HERE}{hold(bytes(made.dataSource()))}:{source.readSchema().json()}"
        output: tuple[Attribute, ...] = operator.all("output")
        problem = "filters were handed to it" if len(_field(source, "supportedFilters")) else None
        return SourceScan(
            name=str(_field(source, "shortName")),
            reader=reader,
            columns=tuple(attribute.name for attribute in output),
            output=output,
            unsupported=problem,
        )

    # ----------------------------------------------------------------------------- rows of the driver

    def _local_rows(self, operator: Operator, scan: Java) -> Node:
        output: tuple[Attribute, ...] = operator.all("output")
        if not all(is_carried(attribute.type) for attribute in output):
            return unknown(operator, "rows of a type that Volley does not carry")
        names = [f"c{index}" for index in range(len(output))]
        target = pa.schema(
            [pa.field(name, to_arrow(item.type)) for name, item in zip(names, output, strict=True)]
        )
        converters = self._jvm.singleton("org.apache.spark.sql.execution.arrow.ArrowConverters")
        batches = converters.toBatchWithSchemaIterator(
            scan.rows().iterator(), scan.schema(), _ROWS_A_BATCH, 0, "UTC", False, False
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, target) as writer:
            while batches.hasNext():
                for batch in pa.ipc.open_stream(bytes(batches.next())):
                    columns = [
                        column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=target))
        return LocalRows(output, sink.getvalue().to_pybytes())

    def _range(self, operator: Operator, scan: Java) -> Node:
        return Range(scan.start(), scan.end(), scan.step(), _attributes(scan))


def _attributes(scan: Java) -> tuple[Attribute, ...]:
    return tuple(
        Attribute(int(item.exprId().id()), item.name(), LONG, False)
        for item in (scan.output().apply(index) for index in range(scan.output().size()))
    )


def _field(owner: Java, name: str) -> Java:
    """A field that has no method of its own."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


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
