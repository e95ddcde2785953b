# SPDX-License-Identifier: Apache-2.0
"""Keeps the partition list of Spark's catalog up to date after a write."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from volley.plan.capture import plan_reader
from volley.plan.jvm import Java


class CatalogPartitions:
    """The partitions of the table that a command writes to, as they were before the write. None for other tables."""

    def __init__(self, spark: SparkSession, command: Java) -> None:
        self._spark = spark
        gateway: Java = spark.sparkContext._gateway
        self._jvm = gateway.jvm
        self._identifier = command.catalogTable().get().identifier()
        catalog = spark._jsparkSession.sessionState().catalog()
        spec = self._jvm.scala.Option.apply(command.staticPartitions())
        reader = plan_reader(gateway)
        self.before = reader.strings(catalog.listPartitionNames(self._identifier, spec))
        found = reader.locations(catalog.listPartitions(self._identifier, spec))
        uri = command.outputPath().toUri()
        local = uri.getScheme() in (None, "file")
        place = "" if local else f"{uri.getScheme()}://{uri.getAuthority()}"
        root = f"{place}{uri.getPath()}".rstrip("/")
        self.elsewhere = sorted(
            {path.rstrip("/") for path in found} - {f"{root}/{name}" for name in self.before}
        )
        """Partitions with a location that does not follow from their names."""

    @classmethod
    def of(cls, spark: SparkSession, command: Java) -> CatalogPartitions | None:
        table = command.catalogTable()
        kept = table.isDefined() and table.get().tracksPartitionsInCatalog()
        return cls(spark, command) if kept and not table.get().partitionColumnNames().isEmpty() else None

    def update(self, written: Iterable[str], replaced: bool) -> None:
        """Tell the catalog which folders exist now; with `replaced`, all others were removed."""
        now = set(written)
        gone = sorted(set(self.before) - now) if replaced else []
        add_partitions(self._spark, self._identifier, now - set(self.before))
        if gone:
            commands = self._jvm.org.apache.spark.sql.execution.command
            specs = _seq(self._jvm, [_spec(self._jvm, name) for name in gone])
            drop = commands.AlterTableDropPartitionCommand(self._identifier, specs, True, False, True)
            drop.run(self._spark._jsparkSession)


def add_partitions(spark: SparkSession, identifier: Java, folders: Iterable[str]) -> None:
    """Add the partitions in these folders of a table to the catalog."""
    jvm: Java = spark._jvm
    none = jvm.scala.Option.apply(None)
    specs = [jvm.scala.Tuple2(_spec(jvm, name), none) for name in sorted(folders)]
    if specs:
        commands = jvm.org.apache.spark.sql.execution.command
        addition = commands.AlterTableAddPartitionCommand(identifier, _seq(jvm, specs), True)
        addition.run(spark._jsparkSession)


def _spec(jvm: Java, folder: str) -> Java:
    return jvm.org.apache.spark.sql.execution.datasources.PartitioningUtils.parsePathFragment(folder)


def _seq(jvm: Java, items: list[Java]) -> Java:
    array = jvm.java.util.ArrayList()
    for item in items:
        array.add(item)
    return jvm.scala.collection.JavaConverters.asScalaBuffer(array).toList()
