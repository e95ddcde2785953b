# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources: natively, with Spark's rows, as they are discovered."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Generator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import datasource as filters
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import volley
from helpers.sampling import every
from volley.cluster import LocalCluster
from volley.errors import QueryError, SourceError
from volley.plan.expressions import Alias, Attribute, Call, Literal
from volley.plan.nodes import HERE, Filter, Node, Project, SourceScan
from volley.plan.types import BOOLEAN, DATE, LONG, STRING
from volley.splits.datasource import DataSourceRows, NotPortable, decode, encode
from volley.splits.filter_pushdown import pushable_filters
from volley.stages.scans import push_down, scans_of
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.testing.sources import Numbers, NumbersPartition


def registered(spark: SparkSession, source: type[DataSource], **options: Any) -> None:
    """The source as a view of its own name."""
    spark.dataSource.register(source)
    reader = spark.read.format(source.name())
    for key, value in options.items():
        reader = reader.option(key, str(value))
    reader.load().createOrReplaceTempView(source.name())


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
class TestRows:
    @pytest.fixture(autouse=True)
    def _workers(self, spark: SparkSession, workers: str) -> Iterator[None]:
        with conf(spark, {"spark.volley.local.workers": workers}):
            yield

    @pytest.mark.parametrize(
        "sql",
        every(
            2,
            [
                "select id, split from numbers",
                "select split, count(*), sum(id) from numbers where id % 3 = 0 group by split",
                "select a.id from numbers a join numbers b on a.id = b.id + 1 where b.split < 2",
                "select id from numbers order by id desc limit 7",
                "select count(*) from numbers",
                "select id from numbers where split = (select max(split) from numbers)",
            ],
        ),
    )
    def test_rows_are_sparks(self, spark: SparkSession, sql: str) -> None:
        registered(spark, Numbers, splits=4, rows=250)
        assert_same_rows(spark, sql)

    def test_a_source_without_discover_runs_natively_too(self, spark: SparkSession) -> None:
        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(number) for number in range(3)]

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                yield pa.RecordBatch.from_pydict({"n": pa.array([partition.value], pa.int64())})

        class Plain(DataSource):
            @classmethod
            def name(cls) -> str:
                return "plain"

            def schema(self) -> str:
                return "n bigint"

            def reader(self, schema: Any) -> Reader:
                return Reader()

        registered(spark, Plain)
        assert_same_rows(spark, "select n from plain")

    def test_every_type_that_spark_carries(self, spark: SparkSession) -> None:
        columns = "b boolean, i int, d double, m decimal(12,2), s string, x binary, t date, z timestamp, a array<int>"

        class Reader(DataSourceReader):
            def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
                moment = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.timezone.utc)
                yield (True, 1, 1.5, Decimal("1.25"), "ä", b"\x00", moment.date(), moment, [1, None])
                yield (None,) * 9

        class Rows(DataSource):
            @classmethod
            def name(cls) -> str:
                return "rows"

            def schema(self) -> str:
                return columns

            def reader(self, schema: Any) -> Reader:
                return Reader()

        registered(spark, Rows)
        assert_same_rows(spark, "select * from rows")

    def test_an_async_discovery(self, spark: SparkSession) -> None:
        class Reader(DataSourceReader):
            async def discover(self) -> AsyncIterator[InputPartition]:
                for number in range(6):
                    await asyncio.sleep(0)
                    yield InputPartition(number)

            def partitions(self) -> list[InputPartition]:
                async def collected() -> list[InputPartition]:
                    return [partition async for partition in self.discover()]

                return asyncio.run(collected())

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                yield pa.RecordBatch.from_pydict({"n": pa.array([partition.value], pa.int64())})

        class Later(DataSource):
            @classmethod
            def name(cls) -> str:
                return "later"

            def schema(self) -> str:
                return "n bigint"

            def reader(self, schema: Any) -> Reader:
                return Reader()

        registered(spark, Later)
        assert_same_rows(spark, "select n from later where n > 3")

    def test_no_splits_give_the_same_result_as_on_spark(self, spark: SparkSession) -> None:
        registered(spark, Numbers, splits=0)
        assert_same_rows(spark, "select id from numbers")


def test_the_first_row_is_there_while_discovery_hangs(spark: SparkSession) -> None:
    registered(spark, Numbers, splits=10, hang_after=1)
    rows = spark.sql("select id from numbers where id > 2").toLocalIterator()
    assert next(rows).id == 3
    assert isinstance(rows, Generator)
    rows.close()


def test_an_endless_source_under_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    registered(spark, Numbers, splits="endless", calls=tmp_path)
    assert len(spark.sql("select id from numbers").take(25)) == 25
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, report.spark_tasks) == ("native", 0)
    (feed,) = report.stages[0].feeds
    assert not feed.final
    assert "splits found so far" in str(report)
    assert (tmp_path / "closed").exists()


def test_a_discovery_that_fails_fails_the_query_with_its_cause(spark: SparkSession) -> None:
    registered(spark, Numbers, splits=10, raise_after=3)
    with pytest.raises(SourceError, match="failed after 3 splits") as info:
        spark.sql("select count(*) from numbers").collect()
    assert isinstance(info.value.__cause__, OSError)


def test_a_reader_that_fails_is_sparks_error(spark: SparkSession) -> None:
    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"other": pa.array([1], pa.int64())})

    class Wrong(DataSource):
        @classmethod
        def name(cls) -> str:
            return "wrong"

        def schema(self) -> str:
            return "n bigint"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    registered(spark, Wrong)
    with pytest.raises(PySparkException, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        spark.sql("select n from wrong").collect()


def filtered_source() -> type[DataSource]:
    """A source of the program whose reader takes the filters on `n`, and reads nothing that they exclude."""

    class Part(InputPartition):
        pass

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.least = 0

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            for condition in filters:
                if type(condition).__name__ == "GreaterThan" and condition.attribute == ("n",):
                    self.least = condition.value + 1
                else:
                    yield condition

        def partitions(self) -> list[InputPartition]:
            return [Part(start) for start in range(self.least, 100, 25)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            rows = list(range(partition.value, min(partition.value + 25, 100)))
            yield pa.RecordBatch.from_pydict(
                {"n": pa.array(rows, pa.int64()), "m": pa.array(rows, pa.int64())}
            )

    class Filtered(DataSource):
        @classmethod
        def name(cls) -> str:
            return "filtered"

        def schema(self) -> str:
            return "n bigint, m bigint"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    return Filtered


def test_a_source_that_takes_filters_is_read_by_the_reader_that_took_them(spark: SparkSession) -> None:
    with conf(spark, {"spark.sql.python.filterPushdown.enabled": "true"}):
        registered(spark, filtered_source())
        for condition in ("n > 60", "n > 60 and m < 90", "m = 3"):
            assert_same_rows(spark, f"select m, count(*) from filtered where {condition} group by m")


def plain_source() -> type[DataSource]:
    """A source of the program."""

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (1,)

    class Plain(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ones"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    return Plain


@pytest.mark.since("4.1")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.pyspark.worker.logging.enabled", "true"),
        ("spark.sql.pyspark.dataSource.profiler", "perf"),
    ],
)
def test_a_source_that_the_session_observes_is_read_by_spark(
    spark: SparkSession, key: str, value: str
) -> None:
    registered(spark, plain_source())
    assert_same_rows(spark, "select n from ones")
    with conf(spark, {key: value}):
        assert spark.table("ones").collect() == [(1,)]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert key in str(report.reasons[0])


class TestEstimates:
    def tasks(self, spark: SparkSession, **estimates: Any) -> int:
        source = type("Sized", (Numbers,), {"name": classmethod(lambda cls: "sized"), **estimates})
        settings = {"spark.volley.local.workers": "4", "spark.volley.planner.scanTaskSize": "1k"}
        with conf(spark, settings | {"spark.volley.singleTaskSize": "2k"}):
            registered(spark, source, splits=8, rows=10)
            assert spark.sql("select count(*) from sized").collect()[0][0] == 80
        report = volley.last_query(spark)
        assert report is not None
        assert report.native
        return max(stage.planned_tasks for stage in report.stages)

    def test_they_decide_how_many_tasks_read_a_source(self, spark: SparkSession) -> None:
        assert self.tasks(spark) == 4
        assert self.tasks(spark, estimated_bytes=1000) == 1
        assert self.tasks(spark, estimated_bytes=3 * 1024) == 3
        assert self.tasks(spark, estimated_rows=1_000_000) == 4
        assert self.tasks(spark, estimated_rows=1_000_000, wanted_tasks=2) == 2

    def test_what_is_no_number_is_an_error(self, spark: SparkSession) -> None:
        with pytest.raises(SourceError, match="estimated_rows is 'many'"):
            self.tasks(spark, estimated_rows="many")


class TestDaemons:
    def test_a_class_that_workers_import_is_read_by_them(
        self, spark: SparkSession, cluster: LocalCluster
    ) -> None:
        with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
            registered(spark, Numbers, splits=4, rows=250)
            assert_same_rows(
                spark, "select split, count(*), sum(id) from numbers where id % 3 = 0 group by split"
            )

    def test_a_class_of_the_program_itself_is_sent_to_workers_that_may_run_code(
        self, spark: SparkSession, cluster: LocalCluster
    ) -> None:
        class Part(InputPartition):
            """Not plain, either."""

        class MyReader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [Part(range(10 * number, 10 * number + 10)) for number in range(3)]

            def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
                assert type(partition).__name__ == "Part"
                return iter([(number,) for number in partition.value])

        class Mine(DataSource):
            @classmethod
            def name(cls) -> str:
                return "mine"

            def schema(self) -> str:
                return "id bigint"

            def reader(self, schema: Any) -> MyReader:
                return MyReader()

        with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
            registered(spark, Mine)
            assert_same_rows(spark, "select id % 7, count(*), sum(id) from mine group by id % 7")

        # Its owner, or the session, does not want that.
        without = {"spark.volley.pythonFunctions": "false"}
        with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS | without):
            assert spark.sql("select id from mine").count() == 30
            explanation = volley.explain(spark.table("mine"))
            assert str(explanation).startswith("Spark runs this query: 2 of 2 operators (100%) are native")
            assert "DATA_SOURCE_NOT_SUPPORTED" in str(explanation)
            assert not explanation.native
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "spark"
        assert "DATA_SOURCE_NOT_SUPPORTED" in str(report)
        assert "import" in str(report)


@pytest.mark.usefixtures("distributed")
def test_explain_says_how_a_scan_would_be_shared(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), tmp_path / f"{number}.parquet")
    registered(spark, Numbers, splits=4)
    files = spark.read.schema("id bigint").parquet(str(tmp_path))
    with conf(spark, {"spark.volley.local.workers": "3"}):
        assert "4 splits for 3 tasks" in str(volley.explain(files))
        assert "splits found while it runs, up to 3 tasks" in str(volley.explain(spark.table("numbers")))
    # One task reads the files by itself.
    assert "splits" not in str(volley.explain(files))


def test_a_reader_is_told_what_it_may_prune_by() -> None:
    number, text, day, other = (
        Attribute(1, "number", LONG),
        Attribute(2, "text", STRING),
        Attribute(3, "day", DATE),
        Attribute(9, "elsewhere", LONG),
    )

    def call(function: str, *arguments: Any) -> Call:
        return Call(function, arguments, BOOLEAN)

    # None of these says anything of one column alone.
    vague = (
        call("IsNotNull", text),
        call("EqualTo", number, Literal(None, LONG)),
        call("Or", call("EqualTo", number, Literal(1, LONG)), call("EqualTo", text, Literal("x", STRING))),
        call("LessThan", number, other),
    )
    condition = call(
        "And",
        call(
            "And", call("GreaterThan", number, Literal(3, LONG)), call("EqualTo", Literal("x", STRING), text)
        ),
        call(
            "And",
            call("In", day, Literal(0, DATE), Literal(1, DATE)),
            call("LessThan", other, Literal(1, LONG)),
        ),
    )
    scan = SourceScan("s", "", ("n", "t", "d"), (number, text, day), filters=(condition, *vague))
    assert pushable_filters(scan) == [
        filters.GreaterThan(("n",), 3),
        filters.EqualTo(("t",), "x"),
        filters.In(("d",), (datetime.date(1970, 1, 1), datetime.date(1970, 1, 2))),
    ]


def test_a_source_is_told_of_the_columns_that_are_read_and_no_others() -> None:
    columns = tuple(Attribute(number, f"c{number}", LONG) for number in range(5))
    scan = SourceScan("s", "", tuple(f"n{number}" for number in range(5)), columns)
    condition = Call("LessThan", (columns[3], columns[1]), BOOLEAN)

    def read(plan: Node) -> tuple[str, ...]:
        (found,) = scans_of(push_down(plan))
        assert isinstance(found, SourceScan)
        assert len(found.output) == len(found.columns)
        return found.columns

    assert read(Project((columns[4], Alias(9, "x", columns[0])), scan)) == ("n0", "n4")
    assert read(Project((columns[4],), Filter(condition, scan))) == ("n1", "n3", "n4")
    assert read(Project((), scan)) == ("n0",)
    # All of it is what somebody above may read.
    assert read(Filter(condition, scan)) == scan.columns
    assert read(scan) == scan.columns


class TestReferences:
    def test_partitions_are_sent_as_plain_json(self) -> None:
        partition = NumbersPartition(1, 2, 3, 4)
        assert decode(encode(partition, pickles=False), pickles=False) == partition
        value = InputPartition(
            {"a": (1, [None, 1.5, True]), "b": b"\x00", "c": Decimal("1.20"), "d": datetime.date(2024, 2, 29)}
        )
        assert decode(encode(value, pickles=False), pickles=False).value == value.value
        with pytest.raises(NotPortable, match="object"):
            encode(InputPartition(object()), pickles=False)

    def test_a_peer_can_name_nothing_but_partitions_and_sources(self) -> None:
        with pytest.raises(NotPortable):
            decode(b'{"class": "subprocess:Popen", "fields": {}}', pickles=False)
        schema = '{\\"type\\": \\"struct\\", \\"fields\\": []}'
        words = '{"class": "subprocess:Popen", "options": {}, "schema": "' + schema + '"}'
        with pytest.raises(NotPortable):
            DataSourceRows(SourceScan("x", words, (), ()))

    def test_an_object_of_another_process_is_refused_without_being_opened(self) -> None:
        with pytest.raises(QueryError, match="driver's process"):
            DataSourceRows(SourceScan("x", f"{HERE}{'0' * 64}:{{}}", (), ()))
