# SPDX-License-Identifier: Apache-2.0
"""Writes that create a table: `saveAsTable` and CREATE TABLE ... AS SELECT.

Spark's command is two things: a write of files, which Spark's own data source plans and Volley does like any other, and
an entry in the catalog. As with Spark, the entry is made when the files are there; a table that is to be replaced goes
when the rows of the new one have been computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from volley.bridge.catalog_partitions import add_partitions
from volley.plan.jvm import Java, copy_with, singleton
from volley.spark_versions.registry import current
from volley.support.reasons import Reason, Unsupported

_CREATE = "CreateDataSourceTableAsSelectCommand"
_SAVE = "SaveAsV1TableCommand"

# Positions of the arguments of `copy`, from 1.
_IDENTIFIER, _STORAGE, _SCHEMA = 1, 3, 4
_LOCATION, _QUERY = 1, 3


def creates_table(command: Java) -> bool:
    return str(command.getClass().getSimpleName()) in (_CREATE, _SAVE)


def with_query(command: Java, query: Java) -> Java:
    """The same command with another query."""
    return copy_with(command, {_QUERY: query})


class NewTable:
    """The catalog entry that a command creates.

    `insert` is the write of its files, not analyzed yet. `replaces`: a table of that name exists at the same location
    and is dropped.
    """

    def __init__(self, spark: SparkSession, command: Java, location: Java, replaces: bool) -> None:
        self.replaces = replaces
        self.insert = _insert(spark, command, location, "Overwrite", None)
        self._spark = spark
        self._command = command
        self._location = location
        self._catalog = spark._jsparkSession.sessionState().catalog()

    def make_way(self) -> None:
        """Drop the table that is replaced, if there is one, and its files."""
        if self.replaces:
            self._catalog.dropTable(self._command.table().identifier(), True, False)

    def enter(self, partition_names: tuple[str, ...], folders: Iterable[str]) -> None:
        """Create the catalog entry, with the written folders as partitions."""
        session = self._spark._jsparkSession
        table = self._command.table()
        keeps_list = bool(partition_names) and bool(
            session.sessionState().conf().manageFilesourcePartitions()
        )
        storage = copy_with(table.storage(), {_LOCATION: self._some(self._location)})
        changes = {_STORAGE: storage, _SCHEMA: self._schema(partition_names)}
        if keeps_list:
            changes[current().tracks_partitions_place] = True
        self._catalog.createTable(copy_with(table, changes), False, False)
        if keeps_list:
            add_partitions(self._spark, table.identifier(), folders)
        commands = self._spark._jvm.org.apache.spark.sql.execution.command  # type: ignore[union-attr]
        commands.CommandUtils.updateTableStats(session, table)
        if self.replaces:
            self._catalog.refreshTable(table.identifier())

    def _schema(self, partition_names: tuple[str, ...]) -> Java:
        """As Spark's data source gives it: partition columns last, and every column may be NULL."""
        separator = "\x01"
        names = str(self._command.outputColumnNames().mkString(separator)).split(separator)
        fields: list[dict[str, Any]] = json.loads(self._command.query().schema().json())["fields"]
        named = {name: {**field, "name": name} for field, name in zip(fields, names, strict=True)}
        ordered = [named[name] for name in names if name not in partition_names]
        ordered += [named[name] for name in partition_names]
        text = json.dumps({"type": "struct", "fields": ordered})
        schema = self._spark._jvm.org.apache.spark.sql.types.DataType.fromJson(text).asNullable()  # type: ignore[union-attr]
        gateway = self._spark.sparkContext._gateway
        utilities = singleton(gateway, "org.apache.spark.sql.catalyst.util.package")
        if current().metadata_has_kinds:
            kinds = getattr(utilities, "removeInternalMetadata$default$2")()
            cleaned = utilities.removeInternalMetadata(schema, kinds)
        else:
            cleaned = utilities.removeInternalMetadata(schema)
        conf = self._spark._jsparkSession.sessionState().conf()
        return singleton(gateway, "org.apache.spark.sql.catalyst.util.CharVarcharUtils").getRawSchema(
            cleaned, conf
        )

    def _some(self, value: Java) -> Java:
        return self._spark._jvm.scala.Option.apply(value)  # type: ignore[union-attr]


def read_table(spark: SparkSession, command: Java) -> NewTable | Java | Unsupported | None:
    """The table that an analyzed command creates; for an append to an existing table, the write itself.

    None if there is nothing to write, or Spark will refuse.
    """
    state = spark._jsparkSession.sessionState()
    command = _created(spark, command)
    if str(command.getClass().getSimpleName()) != _CREATE:
        return Unsupported(
            Reason.ACTION, str(command.getClass().getSimpleName()), "only writes of files are native"
        )
    table, mode = command.table(), str(command.mode())
    provider = str(table.provider().get()).lower()
    if provider != "parquet":
        return Unsupported(Reason.FILE_FORMAT, "write", provider)
    location = table.storage().locationUri()
    if state.catalog().tableExists(table.identifier()):
        old = state.catalog().getTableMetadata(table.identifier())
        if mode == "Append":
            return _insert(spark, command, old.storage().locationUri().get(), mode, table)
        if mode != "Overwrite" or _reads(command.query(), old.storage().locationUri().get().getPath()):
            return None
        if str(old.tableType().name()) != "MANAGED" or str(table.tableType().name()) != "MANAGED":
            return Unsupported(Reason.ACTION, "write", "an external table is replaced")
        where = state.catalog().defaultTablePath(table.identifier())
        if not where.equals(old.storage().locationUri().get()):
            return Unsupported(Reason.ACTION, "write", "the table that is replaced lies elsewhere")
        return NewTable(spark, command, where, replaces=True)
    managed = str(table.tableType().name()) == "MANAGED"
    where = state.catalog().defaultTablePath(table.identifier()) if managed else location.get()
    if not _is_free(spark, where):
        return Unsupported(Reason.ACTION, "write", f"{where.getPath()} is not empty")
    return NewTable(spark, command, where, replaces=False)


def _is_free(spark: SparkSession, where: Java) -> bool:
    """Whether a location does not exist or is an empty folder."""
    if where.getScheme() in (None, "file"):
        directory = Path(where.getPath())
        return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(where)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(path):
        return True
    return bool(files.getFileStatus(path).isDirectory()) and not len(files.listStatus(path))


def _created(spark: SparkSession, command: Java) -> Java:
    """What `saveAsTable` does is decided when it runs; this is what Spark would run then."""
    if str(command.getClass().getSimpleName()) != _SAVE:
        return command
    state = spark._jsparkSession.sessionState()
    described = command.tableDesc()
    identifier = state.catalog().qualifyIdentifier(described.identifier())
    table = copy_with(described, {_IDENTIFIER: identifier})
    jvm: Any = spark._jvm
    creation = jvm.org.apache.spark.sql.execution.datasources.CreateTable(
        table, command.mode(), jvm.scala.Option.apply(command.query())
    )
    modes = singleton(spark.sparkContext._gateway, "org.apache.spark.sql.execution.CommandExecutionMode")
    return state.executePlan(creation, modes.SKIP()).analyzed()


def _insert(spark: SparkSession, command: Java, location: Java, mode: str, table: Java | None) -> Java:
    """Spark's own plan of the write: its data source is asked as the command would ask it."""
    jvm: Any = spark._jvm
    made = command.table()
    sources = jvm.org.apache.spark.sql.execution.datasources
    path = jvm.scala.Tuple2(
        "path", str(jvm.org.apache.spark.sql.catalyst.catalog.CatalogUtils.URIToString(location))
    )
    nothing = jvm.scala.Option.apply(None)
    source = sources.DataSource(
        spark._jsparkSession,
        made.provider().get(),
        jvm.PythonUtils.toSeq([]),
        nothing,
        made.partitionColumnNames(),
        made.bucketSpec(),
        getattr(made.storage().properties(), "$plus")(path),
        jvm.scala.Option.apply(table),
        *[nothing] * current().data_source_options,
    )
    return source.planForWriting(getattr(jvm.org.apache.spark.sql.SaveMode, mode), command.query())


def _reads(query: Java, directory: str) -> bool:
    """Whether the query reads the table that it replaces. Spark refuses that with its own error."""
    leaves = query.collectLeaves()
    found = (leaves.apply(number) for number in range(leaves.size()))
    relations = (leaf.relation() for leaf in found if leaf.getClass().getSimpleName() == "LogicalRelation")
    files = (each for each in relations if each.getClass().getSimpleName() == "HadoopFsRelation")
    roots = (each.location().rootPaths() for each in files)
    paths = (list_.apply(n).toUri().getPath() for list_ in roots for n in range(list_.size()))
    return any(Path(path).is_relative_to(directory) for path in paths)
