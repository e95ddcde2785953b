# SPDX-License-Identifier: Apache-2.0
"""What a write is to do, read from the command that Spark planned for it.

Spark resolves the table, checks the columns, adds the casts of an INSERT and decides between its modes; here its
command becomes plain data, or a reason why Spark should run it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from volley.bridge.commit import can_be_replaced
from volley.bridge.new_table import NewTable, makes_a_table, read_table, with_query
from volley.bridge.partitions import CatalogPartitions
from volley.formats.parquet import SPARK_VERSION
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.types import NULL, ArrayType, DataType, SimpleType, StructType, is_carried, parse_type
from volley.support.reasons import Reason, Unsupported
from volley.worker.files import folder

_COMMAND = "InsertIntoHadoopFsRelationCommand"
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"

# Settings that change what is in the files or how they are committed, with the values that mean what Volley does.
_SETTINGS = {
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
}
_OPTIONS = frozenset(
    {
        "path",
        "compression",
        "parquet.compression",
        "maxrecordsperfile",
        "partitionoverwritemode",
        "__partition_columns",
        "serialization.format",
    }
)
# pyarrow's name and the ending of the file for each codec that both write alike.
_CODECS = {
    "UNCOMPRESSED": ("none", ".parquet"),
    "SNAPPY": ("snappy", ".snappy.parquet"),
    "GZIP": ("gzip", ".gz.parquet"),
    "ZSTD": ("zstd", ".zstd.parquet"),
    "LZ4_RAW": ("lz4", ".lz4raw.parquet"),
}


@dataclass(frozen=True)
class WriteCommand:
    """`columns` are those of the query in order, under the names that they get; `partition_positions` point into them.

    `replaces_all`: the table's rows go. `dynamic`: the rows of the folders that are written go. `replaces`: the rows
    below this folder go. `static` is the one folder that all rows go to, where the command names it. `rows` is Spark's
    QueryExecution of what is written and `command` its command, `catalog` the partitions of which its catalog keeps a
    list, `table` the table that is made of the files.
    """

    directory: Path
    columns: tuple[Attribute, ...]
    partition_positions: tuple[int, ...]
    partition_names: tuple[str, ...]
    replaces_all: bool
    dynamic: bool
    replaces: str
    static: str
    codec: str
    suffix: str
    int96: bool
    rows_a_file: int | None
    metadata: tuple[tuple[str, str], ...]
    single: bool
    mark_success: bool
    ansi: bool
    rows: Java
    command: Java
    catalog: CatalogPartitions | None
    table: NewTable | None = None


def analyzed(spark: SparkSession, logical: Java) -> Java:
    """The command after Spark's analysis, which raises for a write that Spark refuses. Nothing runs."""
    state = spark._jsparkSession.sessionState()
    return state.executePlan(logical, _skip(spark)).analyzed()


def read_command(spark: SparkSession, command: Java) -> WriteCommand | Unsupported | None:
    """None when the command writes nothing, or only says why not: Spark does that in its own words."""
    table: NewTable | None = None
    if makes_a_table(command):
        found = read_table(spark, command)
        if found is None or isinstance(found, Unsupported):
            return found
        table = found if isinstance(found, NewTable) else None
        command = analyzed(spark, table.insert if table else found)
    name = str(command.getClass().getSimpleName())
    if name != _COMMAND:
        return Unsupported(Reason.ACTION, name, "only writes of files are native")
    there = Path(command.outputPath().toUri().getPath()).exists()
    if there and str(command.mode()) in ("ErrorIfExists", "Ignore"):
        return None
    write = _Reader(spark, command).read()
    if table is None or isinstance(write, Unsupported):
        return write
    # Nothing of what is in the way stays, so there is nothing that could be replaced in part.
    return replace(write, table=table, replaces_all=True, dynamic=False, replaces="")


def rows_of(spark: SparkSession, command: Java) -> Java | None:
    """Spark's QueryExecution of what any command writes; None for a command that it cannot be told from."""
    if str(command.getClass().getSimpleName()) != _COMMAND and not makes_a_table(command):
        return None
    return spark._jsparkSession.sessionState().executePlan(command.query(), _skip(spark))


def run_over(spark: SparkSession, command: Java, query: Java) -> None:
    """Let Spark run a command over other rows than its own, of the same attributes."""
    if makes_a_table(command):
        changed = with_query(command, query)
    else:
        changed = command.withNewChildren(spark._jvm.PythonUtils.toSeq([query]))  # type: ignore[union-attr]
    state = spark._jsparkSession.sessionState()
    state.executePlan(changed, getattr(state, "executePlan$default$2")()).assertCommandExecuted()


class _Reader:
    def __init__(self, spark: SparkSession, command: Java) -> None:
        self._spark = spark
        self._command = command
        self._conf = spark._jsparkSession.sessionState().conf()
        self._options = _map(command.options())
        self._partitions_kept = CatalogPartitions.of(spark, command)
        self._query = spark._jsparkSession.sessionState().executePlan(command.query(), _skip(spark))

    def read(self) -> WriteCommand | Unsupported:
        problem = self._problem()
        if problem is not None:
            return problem
        command = self._command
        columns, schema = self._columns()
        for column in columns:
            if not is_carried(column.type) or _holds(column.type, NULL):
                return Unsupported(Reason.DATA_TYPE, column.name, str(column.type))
        stamps = str(self._conf.getConfString("spark.sql.parquet.outputTimestampType"))
        int96 = stamps == "INT96"
        if stamps == "TIMESTAMP_MILLIS" or (int96 and any(_holds(c.type, _NTZ) for c in columns)):
            return Unsupported(Reason.FILE_OPTION, "outputTimestampType", stamps)
        codec_name = str(self._parquet_options().compressionCodecClassName())
        if codec_name not in _CODECS:
            return Unsupported(Reason.FILE_OPTION, "compression", codec_name)
        codec, suffix = _CODECS[codec_name]
        positions, names = self._partitions()
        static = self._static(names)
        directory = Path(command.outputPath().toUri().getPath()).resolve()
        overwrite = str(command.mode()) == "Overwrite"
        dynamic = bool(command.dynamicPartitionOverwrite())
        replaces_all = overwrite and not dynamic and not static
        if replaces_all and not can_be_replaced(directory):
            return Unsupported(Reason.FILE_SYSTEM, "overwrite", f"{directory} cannot be exchanged")
        limit = int(self._options.get("maxrecordsperfile", self._conf.maxRecordsPerFile()))
        in_files = [field for number, field in enumerate(schema) if number not in positions]
        return WriteCommand(
            directory=directory,
            columns=columns,
            partition_positions=positions,
            partition_names=names,
            replaces_all=replaces_all,
            dynamic=dynamic,
            replaces=static if overwrite and not dynamic else "",
            static=static if len(self._given()) == len(names) else "",
            codec=codec,
            suffix=suffix,
            int96=int96,
            rows_a_file=limit if limit > 0 else None,
            metadata=(
                (SPARK_VERSION, self._spark.version),
                (_ROW_METADATA, _compact({"type": "struct", "fields": in_files})),
            ),
            single=self._is_single(),
            mark_success=self._marks_success() and not dynamic,
            ansi=bool(self._conf.ansiEnabled()),
            rows=self._query,
            command=command,
            catalog=self._partitions_kept,
        )

    def _problem(self) -> Unsupported | None:
        command = self._command
        format_name = command.fileFormat().getClass().getSimpleName().removesuffix("FileFormat").lower()
        if format_name != "parquet":
            return Unsupported(Reason.FILE_FORMAT, "write", format_name)
        scheme = command.outputPath().getFileSystem(self._hadoop()).getUri().getScheme()
        if scheme != "file":
            return Unsupported(Reason.FILE_SYSTEM, "write", str(scheme))
        if command.bucketSpec().isDefined():
            return Unsupported(Reason.FILE_OPTION, "write", "buckets")
        for key, wanted in _SETTINGS.items():
            value = str(self._conf.getConfString(key))
            if value.lower() != wanted.lower():
                return Unsupported(Reason.FILE_OPTION, "write", f"{key}={value}")
        for key in self._options:
            if key not in _OPTIONS:
                return Unsupported(Reason.FILE_OPTION, "write", f"option {key}")
        if self._hadoop().get("parquet.crypto.factory.class") is not None:
            return Unsupported(Reason.FILE_OPTION, "write", "encryption")
        if command.ifPartitionNotExists():
            return Unsupported(Reason.ACTION, "write", "IF NOT EXISTS")
        if self._partitions_kept is not None and self._partitions_kept.elsewhere:
            where = self._partitions_kept.elsewhere[0]
            return Unsupported(Reason.ACTION, "write", f"a partition lies at {where}")
        return None

    def _columns(self) -> tuple[tuple[Attribute, ...], list[dict[str, Any]]]:
        """The columns of the query under the names that they get, and the same as Spark's schema has them."""
        separator = "\x01"
        names = str(self._command.outputColumnNames().mkString(separator)).split(separator)
        fields = json.loads(self._query.optimizedPlan().schema().json())["fields"]
        renamed = [{**field, "name": name} for field, name in zip(fields, names, strict=True)]
        columns = tuple(
            Attribute(number, field["name"], parse_type(field["type"]), field["nullable"])
            for number, field in enumerate(renamed)
        )
        return columns, renamed

    def _partitions(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The partition columns: where the query has them, and what their folders are called after."""
        ids = [id for id, _ in _named_ids(self._command.query().output())]
        found = _named_ids(self._command.partitionColumns())
        return tuple(ids.index(id) for id, _ in found), tuple(name for _, name in found)

    def _static(self, names: tuple[str, ...]) -> str:
        """The folder that the constant partition values of an INSERT name."""
        values = self._given()
        given = [name for name in names if name.lower() in values]
        return folder(given, [values[name.lower()] for name in given])

    def _given(self) -> dict[str, Any]:
        return _map(self._command.staticPartitions())

    def _is_single(self) -> bool:
        """Whether the rows are in one partition, as coalesce(1) puts them: the user wants one file."""
        plan = self._query.executedPlan()
        if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            plan = plan.initialPlan()
        return int(plan.outputPartitioning().numPartitions()) == 1

    def _marks_success(self) -> bool:
        return bool(self._hadoop().getBoolean("mapreduce.fileoutputcommitter.marksuccessfuljobs", True))

    def _hadoop(self) -> Java:
        return self._spark._jsparkSession.sessionState().newHadoopConfWithOptions(self._command.options())

    def _parquet_options(self) -> Java:
        parquet = self._spark._jvm.org.apache.spark.sql.execution.datasources.parquet  # type: ignore[union-attr]
        return parquet.ParquetOptions(self._command.options(), self._conf)


def tell_spark(spark: SparkSession, write: WriteCommand, folders: Iterable[str]) -> None:
    """After the commit, into these folders: whatever Spark remembers of the files is out of date."""
    command = write.command
    if write.table is not None:
        write.table.enter(write.partition_names, folders)
    if write.catalog is not None:
        written = set(folders) or {write.static} - {""}
        write.catalog.update(written, replaced=str(command.mode()) == "Overwrite" and not write.dynamic)
    index = command.fileIndex()
    if index.isDefined():
        index.get().refresh()
    session = spark._jsparkSession
    path = command.outputPath()
    hadoop = session.sessionState().newHadoopConf()
    session.sharedState().cacheManager().recacheByPath(session, path, path.getFileSystem(hadoop))
    table = command.catalogTable()
    if table.isDefined():
        commands = spark._jvm.org.apache.spark.sql.execution.command  # type: ignore[union-attr]
        commands.CommandUtils.updateTableStats(session, table.get())


_NTZ = SimpleType("timestamp_ntz")


def _holds(data_type: DataType, wanted: DataType) -> bool:
    match data_type:
        case StructType(fields):
            return any(_holds(field.type, wanted) for field in fields)
        case ArrayType(element, _):
            return _holds(element, wanted)
        case _:
            return data_type == wanted


def _map(java: Java) -> dict[str, Any]:
    """A Scala map of strings, keys in lower case: options are case-insensitive."""
    found = {}
    pairs = java.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1()).lower()] = pair._2()
    return found


def _named_ids(attributes: Java) -> list[tuple[int, str]]:
    found = (attributes.apply(number) for number in range(attributes.size()))
    return [(int(attribute.exprId().id()), str(attribute.name())) for attribute in found]


def _skip(spark: SparkSession) -> Java:
    modes = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.execution.CommandExecutionMode$")  # type: ignore[union-attr]
    return modes.getField("MODULE$").get(None).SKIP()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
