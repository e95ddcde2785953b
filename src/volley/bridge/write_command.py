# SPDX-License-Identifier: Apache-2.0
"""Reads from Spark's planned command what a write has to do.

Spark resolves the table, checks the columns, adds the casts of an INSERT and decides between its modes; here its
command becomes plain data, or a reason why Spark should run it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from volley.bridge.catalog_partitions import CatalogPartitions
from volley.bridge.commit import can_be_replaced
from volley.bridge.create_table import NewTable, creates_table, read_table, with_query
from volley.formats import WRITABLE
from volley.formats.base import FilePlan, NotWritable, WritableFormat, WriteRequest
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.spark_options import may_matter
from volley.plan.stores import find_store
from volley.plan.types import NULL, STRING, ArrayType, DataType, StructType, is_shared, parse_type
from volley.spark_versions.classic import plan_frame
from volley.storage.s3a import Unmapped
from volley.storage.uploads import can_upload
from volley.support.reasons import Reason, Unsupported
from volley.worker.file_writer import folder

_COMMAND = "InsertIntoHadoopFsRelationCommand"

# Operators that leave rows in their partition. A sort does if it is not global.
_ROW_BY_ROW = frozenset(
    {"ProjectExec", "FilterExec", "SortExec", "WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec"}
)

# Settings that change how files are committed, with the values that mean what Volley does. Those that change what is in
# the files are the format's.
_SETTINGS = {
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
}
_OPTIONS = frozenset(
    {"path", "maxrecordsperfile", "partitionoverwritemode", "__partition_columns", "serialization.format"}
)


@dataclass(frozen=True)
class Repartitioned:
    """The partitions that `repartition` or `coalesce` gives the rows: Spark writes each as a file.

    `by_folder`: their number is Spark's own, and only says that each folder gets one file.
    """

    partitions: int
    by_folder: bool = False


@dataclass(frozen=True)
class WriteCommand:
    """`columns` are those of the query in order, under the names that they get; `partition_positions` point into them.

    `replaces_all`: the table's rows go. `dynamic`: the rows of the folders that are written go. `replaces`: the rows
    below this folder go. `static` is the one folder that all rows go to, where the command names it. `repartitioned` is
    None unless the user says into how many files rows go. `rows` is Spark's QueryExecution of what is written and
    `command` its command, `catalog` the partitions of which its catalog keeps a list, `table` the table that is made of
    the files.
    """

    directory: Path
    columns: tuple[Attribute, ...]
    partition_positions: tuple[int, ...]
    partition_names: tuple[str, ...]
    replaces_all: bool
    dynamic: bool
    replaces: str
    static: str
    format: str
    files: FilePlan
    rows_a_file: int | None
    repartitioned: Repartitioned | None
    mark_success: bool
    ansi: bool
    rows: Java
    command: Java
    catalog: CatalogPartitions | None
    table: NewTable | None = None
    store: str = ""
    """The id of the object store that is written to; `url` is the folder there, and `directory` is unused."""
    url: str = ""


def analyze(spark: SparkSession, logical: Java) -> Java:
    """The command after Spark's analysis, which raises for a write that Spark refuses. Nothing runs."""
    state = spark._jsparkSession.sessionState()
    return state.executePlan(logical, skip_mode(spark)).analyzed()


def read_command(spark: SparkSession, command: Java) -> WriteCommand | Unsupported | None:
    """None if the command writes nothing or will be refused: Spark then runs it and raises its own error."""
    table: NewTable | None = None
    if creates_table(command):
        found = read_table(spark, command)
        if found is None or isinstance(found, Unsupported):
            return found
        table = found if isinstance(found, NewTable) else None
        command = analyze(spark, table.insert if table else found)
    name = str(command.getClass().getSimpleName())
    if name != _COMMAND:
        return Unsupported(Reason.ACTION, name, "only writes of files are native")
    if str(command.mode()) in ("ErrorIfExists", "Ignore") and _exists(spark, command):
        return None
    write = _Reader(spark, command).read()
    if table is None or isinstance(write, Unsupported):
        return write
    # Nothing of what is in the way stays, so there is nothing that could be replaced in part.
    return replace(write, table=table, replaces_all=True, dynamic=False, replaces="")


def execution_of(spark: SparkSession, command: Java) -> Java:
    """A QueryExecution of an analyzed command, which does not run."""
    return spark._jsparkSession.sessionState().executePlan(command, skip_mode(spark))


def rows_of(spark: SparkSession, command: Java) -> Java | None:
    """Spark's QueryExecution of the rows that a command writes; None if the command does not reveal it."""
    if str(command.getClass().getSimpleName()) != _COMMAND and not creates_table(command):
        return None
    return spark._jsparkSession.sessionState().executePlan(command.query(), skip_mode(spark))


def run_over(spark: SparkSession, command: Java, query: Java) -> None:
    """Let Spark run a command over other rows than its own, of the same attributes."""
    if creates_table(command):
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
        self._query = spark._jsparkSession.sessionState().executePlan(command.query(), skip_mode(spark))
        self._store = ""

    def read(self) -> WriteCommand | Unsupported:
        problem = self._problem()
        if problem is not None:
            return problem
        command = self._command
        columns, schema = self._columns()
        for column in columns:
            if not is_shared(column.type) or _holds(column.type, NULL):
                return Unsupported(Reason.DATA_TYPE, column.name, str(column.type))
        positions, names = self._partitions()
        files = self._file_plan(columns, schema, positions)
        if isinstance(files, NotWritable):
            return Unsupported(Reason.FILE_OPTION, files.option, files.value)
        in_files = [number for number in range(len(columns)) if number not in positions]
        texts = {in_files[place]: pattern for place, pattern in files.texts.items()}
        columns = tuple(
            replace(column, type=STRING) if number in texts else column
            for number, column in enumerate(columns)
        )
        static = self._static(names)
        directory = Path(command.outputPath().toUri().getPath()).resolve()
        overwrite = str(command.mode()) == "Overwrite"
        dynamic = bool(command.dynamicPartitionOverwrite())
        replaces_all = overwrite and not dynamic and not static
        if replaces_all and not self._store and not can_be_replaced(directory):
            return Unsupported(Reason.FILE_SYSTEM, "overwrite", f"{directory} cannot be exchanged")
        limit = int(self._options.get("maxrecordsperfile", self._conf.maxRecordsPerFile()))
        return WriteCommand(
            directory=directory,
            columns=columns,
            partition_positions=positions,
            partition_names=names,
            replaces_all=replaces_all,
            dynamic=dynamic,
            replaces=static if overwrite and not dynamic else "",
            static=static if len(self._given()) == len(names) else "",
            format=self._format_name(),
            files=files,
            rows_a_file=limit if limit > 0 else None,
            repartitioned=self._repartitioned(),
            mark_success=self._marks_success() and not dynamic,
            ansi=bool(self._conf.ansiEnabled()),
            rows=self._with_texts(len(columns), texts) if texts else self._query,
            command=command,
            catalog=self._partitions_kept,
            store=self._store,
            url=_url(command) if self._store else "",
        )

    def _format_name(self) -> str:
        return str(self._command.fileFormat().getClass().getSimpleName()).removesuffix("FileFormat").lower()

    def _file_format(self) -> WritableFormat:
        return WRITABLE[self._format_name()]

    def _file_plan(
        self, columns: tuple[Attribute, ...], schema: list[dict[str, Any]], partitions: tuple[int, ...]
    ) -> FilePlan | NotWritable:
        file_format = self._file_format()
        in_files = [number for number in range(len(columns)) if number not in partitions]
        return file_format.plan_write(
            WriteRequest(
                columns=tuple(columns[number] for number in in_files),
                schema=_compact({"type": "struct", "fields": [schema[number] for number in in_files]}),
                settings={
                    key: str(self._conf.getConfString(key)) for key in file_format.write_rules.settings
                },
                options={key: str(value) for key, value in self._options.items()},
                spark_version=self._spark.version,
            )
        )

    def _with_texts(self, width: int, texts: Mapping[int, str | None]) -> Java:
        """The query with Spark's expressions for the texts of some columns, by position."""
        jvm: Any = self._spark._jvm
        names = [f"c{number}" for number in range(width)]
        renamed = plan_frame(self._spark, self._command.query())._jdf.toDF(jvm.PythonUtils.toSeq(names))

        def column(number: int) -> Java:
            value = renamed.col(names[number])
            if number not in texts:
                return value
            pattern = texts[number]
            text = (
                value.cast("string")
                if pattern is None
                else jvm.org.apache.spark.sql.functions.date_format(value, pattern)
            )
            return text.alias(names[number])

        selected = renamed.select(jvm.PythonUtils.toSeq([column(number) for number in range(width)]))
        analyzed = selected.queryExecution().analyzed()
        return self._spark._jsparkSession.sessionState().executePlan(analyzed, skip_mode(self._spark))

    def _problem(self) -> Unsupported | None:
        command = self._command
        if self._format_name() not in WRITABLE:
            return Unsupported(Reason.FILE_FORMAT, "write", self._format_name())
        rules = self._file_format().write_rules
        scheme = command.outputPath().getFileSystem(self._hadoop()).getUri().getScheme()
        if scheme != "file" and (problem := self._find_store()):
            return Unsupported(Reason.FILE_SYSTEM, "write", problem)
        if command.bucketSpec().isDefined():
            return Unsupported(Reason.FILE_OPTION, "write", "buckets")
        for key, wanted in {**_SETTINGS, **rules.settings}.items():
            value = str(self._conf.getConfString(key))
            if wanted is not None and value.lower() != wanted.lower():
                return Unsupported(Reason.FILE_OPTION, "write", f"{key}={value}")
        for key in self._options:
            if key not in _OPTIONS | rules.options and may_matter(self._format_name(), key):
                return Unsupported(Reason.FILE_OPTION, "write", f"option {key}")
        for key in rules.hadoop:
            if self._hadoop().get(key) is not None:
                return Unsupported(Reason.FILE_OPTION, "write", key)
        if command.ifPartitionNotExists():
            return Unsupported(Reason.ACTION, "write", "IF NOT EXISTS")
        if self._partitions_kept is not None and self._partitions_kept.elsewhere:
            where = self._partitions_kept.elsewhere[0]
            return Unsupported(Reason.ACTION, "write", f"a partition lies at {where}")
        return None

    def _find_store(self) -> str | None:
        """Find the object store that is written to. Returns the reason if only Spark can write there."""
        command = self._command
        path, uri = command.outputPath(), command.outputPath().toUri()
        if not can_upload():
            return "uploads need boto3 (volley-spark[s3])"
        try:
            if uri.getScheme() not in ("s3a", "s3"):
                raise Unmapped(f"{uri.getScheme()}: only Spark writes there")
            root = f"{uri.getScheme()}://{uri.getAuthority()}"
            self._store = find_store(self._spark.sparkContext._gateway, self._hadoop(), root)
        except Unmapped as error:
            return str(error)
        return None if path.getParent() is not None else "the root of a bucket"

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
        """The positions of the partition columns in the query, and the names for their folders."""
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

    def _repartitioned(self) -> Repartitioned | None:
        plan = self._query.executedPlan()
        is_adaptive = plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec"
        if is_adaptive:
            plan = plan.initialPlan()
        partitions = int(plan.outputPartitioning().numPartitions())
        if partitions == 1:
            return Repartitioned(1)
        while (name := plan.getClass().getSimpleName()) in _ROW_BY_ROW and not (
            name == "SortExec" and bool(getattr(plan, "global")())
        ):
            plan = plan.children().apply(0)
        if name == "CoalesceExec":
            return Repartitioned(partitions)
        if name != "ShuffleExchangeExec":
            return None
        origin = str(plan.shuffleOrigin())
        if plan.outputPartitioning().getClass().getSimpleName() == "RangePartitioning":
            # Where the ranges end is not known before all rows are. One file has them all, in order.
            return None
        if origin == "REPARTITION_BY_NUM" or (origin == "REPARTITION_BY_COL" and not is_adaptive):
            return Repartitioned(partitions)
        if origin == "REPARTITION_BY_COL" and self._is_by_folder(plan):
            return Repartitioned(partitions, by_folder=True)
        return None

    def _is_by_folder(self, exchange: Java) -> bool:
        """Whether rows of one folder have equal keys."""
        folders = {id for id, _ in _named_ids(self._command.partitionColumns())}
        keys = exchange.outputPartitioning().references().toSeq()
        return {id for id, _ in _named_ids(keys)} <= folders

    def _marks_success(self) -> bool:
        return bool(self._hadoop().getBoolean("mapreduce.fileoutputcommitter.marksuccessfuljobs", True))

    def _hadoop(self) -> Java:
        return self._spark._jsparkSession.sessionState().newHadoopConfWithOptions(self._command.options())


def refresh_spark(spark: SparkSession, write: WriteCommand, folders: Iterable[str]) -> None:
    """Update Spark's catalog, file index and caches, after a commit to these folders."""
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


def _exists(spark: SparkSession, command: Java) -> bool:
    path = command.outputPath()
    if str(path.toUri().getScheme()) == "file":
        return Path(path.toUri().getPath()).exists()
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    return bool(path.getFileSystem(hadoop).exists(path))


def _url(command: Java) -> str:
    uri = command.outputPath().toUri()
    return f"{uri.getScheme()}://{uri.getAuthority()}{uri.getPath()}"


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


def skip_mode(spark: SparkSession) -> Java:
    """The mode of a QueryExecution that runs no command."""
    modes = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.execution.CommandExecutionMode$")  # type: ignore[union-attr]
    return modes.getField("MODULE$").get(None).SKIP()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
