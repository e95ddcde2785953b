# SPDX-License-Identifier: Apache-2.0
"""Queries that read the same objects again read what is kept of them: the same rows, and hardly a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from helpers.sampling import every
from volley.cluster import LocalCluster
from volley.errors import DataError, FallbackError
from volley.storage.object_cache import ObjectCache, shared_object_cache
from volley.storage.objects import ObjectName, open_object
from volley.testing.http_faults import Fault, FaultyProxy, Request, faulty_proxy
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.s3 import Bucket
from volley.testing.s3a import S3a
from volley.testing.session import conf

ROWS = """SELECT id AS n, CAST(id AS DECIMAL(20, 3)) AS x, id % 7 AS few, CONCAT('é', id) AS s,
IF(id % 5 = 0, NULL, id / 7) AS d, DATE_ADD(DATE'1999-12-31', CAST(id AS INT)) AS day,
NAMED_STRUCT('a', id, 'b', CAST(id AS STRING)) AS st, ARRAY(id, id + 1) AS list, MAP(CAST(id AS STRING), id) AS m,
id AS `st.a`, CAST(id % 4 AS INT) AS p FROM range(8000)"""
QUERIES = {
    "sums": "SELECT few, sum(x), count(d), max(s) FROM kept GROUP BY few ORDER BY few",
    "filter": "SELECT n, s FROM kept WHERE n = 7100 OR s = 'é7'",
    "nested": "SELECT st.a, list[1], m FROM kept WHERE n % 1000 = 3 ORDER BY n",
    "dots": "SELECT sum(`st.a`), max(st.b) FROM kept",
    "values": "SELECT p, count(*), min(day) FROM kept WHERE p > 0 GROUP BY p ORDER BY p",
    "join": "SELECT a.s, b.x FROM kept a JOIN kept b ON a.n = b.n + 1 WHERE a.few = 2 AND b.d > 700 ORDER BY 1",
    "dynamic": "SELECT count(*) FROM kept WHERE n IN (SELECT max(n) FROM kept GROUP BY few)",
    "count": "SELECT count(*) FROM kept",
    "all": "SELECT * FROM kept",
}


@pytest.fixture(scope="module")
def table(
    spark_session: SparkSession, s3a: S3a, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """A partitioned table with several row groups in each file, with bloom filters and indexes."""
    folder = tmp_path_factory.mktemp("kept")
    rows = spark_session.sql(ROWS).repartition(2)
    writer = rows.write.partitionBy("p").option("parquet.bloom.filter.enabled#s", "true")
    writer.option("parquet.bloom.filter.expected.ndv#s", 1000).option("parquet.block.size", 30_000).mode(
        "overwrite"
    ).parquet(str(folder))
    bucket.upload(folder, "kept")
    return s3a.url("kept")


@pytest.fixture
def proxy(s3a: S3a, bucket: Bucket) -> Iterator[FaultyProxy]:
    with (
        faulty_proxy(bucket.port, lambda request: None) as running,
        s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{running.port}"}),
    ):
        yield running


@pytest.mark.parametrize("name", every(2, list(QUERIES), name=str))
def test_rows_of_copies(spark: SparkSession, table: str, proxy: FaultyProxy, name: str) -> None:
    """The first time from streams, then from copies, and then without another request for data."""
    spark.read.parquet(table).createOrReplaceTempView("kept")
    for _ in range(3):
        before = len(proxy.requests)
        assert_same_rows(spark, QUERIES[name])
    assert not any(request.reads_data for request in proxy.requests[before:])


def test_what_statistics_exclude(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    """Files without wanted rows are left out. One of which some row groups are read is read as a stream."""
    for number in range(2):
        rows = pa.table({"n": range(number * 400_000, (number + 1) * 400_000)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=100_000)
    bucket.upload(tmp_path, "excluded")
    frame = spark.read.parquet(s3a.url("excluded"))
    held: list[int] = []
    for condition in ("n >= 400000", "n >= 500000", "n < 0"):
        for _ in range(3):
            assert_same_rows(spark, frame.where(condition).selectExpr("count(n)", "sum(n)"))
        held.append(shared_object_cache().held_bytes)
    assert held[0] == held[1] == held[2]


def test_the_same_file_twice(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "1.parquet")
    bucket.upload(tmp_path, "twice")
    url = s3a.url("twice/1.parquet")
    for _ in range(3):
        assert_same_rows(spark, lambda session: session.read.parquet(url, url).selectExpr("sum(n)"))


def test_replaced_object(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    """A new version is read, and what was kept of the old one is dropped."""
    for sign in (1, -1):
        pq.write_table(pa.table({"n": [sign * n for n in range(1000)]}), tmp_path / "1.parquet")
        bucket.upload(tmp_path, "replaced")
        for _ in range(3):
            assert_same_rows(
                spark,
                lambda session: session.read.parquet(s3a.url("replaced")).selectExpr("sum(n)", "max(n)"),
            )
    # A plan of the version before is refused, also if it is kept.
    frame = spark.read.parquet(s3a.url("replaced"))
    assert frame.selectExpr("min(n)").toArrow().to_pylist() == [{"min(n)": -999}]
    pq.write_table(pa.table({"n": [5, 6]}), tmp_path / "1.parquet")
    bucket.upload(tmp_path, "replaced")
    with conf(spark, {"spark.volley.fallback": "error"}), pytest.raises(FallbackError, match="changed"):
        frame.selectExpr("min(n)").toArrow()


@pytest.mark.parametrize(
    "fault", every(3, [Fault.RESET, Fault.BUSY, Fault.TRUNCATED], name=lambda fault: fault.name)
)
def test_faults(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path, fault: Fault) -> None:
    """While a copy is made, every third request fails at first."""
    pq.write_table(pa.table({"n": range(500_000)}), tmp_path / "1.parquet", compression="none")
    bucket.upload(tmp_path, f"faults/{fault.name}")

    def choose(request: Request) -> Fault | None:
        return fault if request.number % 3 == 0 else None

    with faulty_proxy(bucket.port, choose) as proxy:
        with s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}):
            frame = spark.read.parquet(s3a.url(f"faults/{fault.name}"))
            for _ in range(3):
                assert_same_rows(spark, frame.selectExpr("sum(n)"))
        assert proxy.injected > 0


def test_without_a_cache(spark: SparkSession, table: str, proxy: FaultyProxy) -> None:
    with conf(spark, {"spark.volley.storage.cacheSize": "0"}):
        spark.read.parquet(table).createOrReplaceTempView("kept")
        before = shared_object_cache().held_bytes
        for _ in range(3):
            first = len(proxy.requests)
            assert_same_rows(spark, "SELECT max(list[0]) FROM kept")
        assert shared_object_cache().held_bytes == before
        assert any(request.reads_data for request in proxy.requests[first:])


def test_workers(spark: SparkSession, cluster: LocalCluster, s3a: S3a, table: str) -> None:
    with conf(spark, DISTRIBUTED_SETTINGS | cluster.settings | {"spark.volley.transport": "flight"}):
        spark.read.parquet(table).createOrReplaceTempView("kept")
        for _ in range(3):
            assert_same_rows(spark, QUERIES["sums"])
            assert_same_rows(spark, QUERIES["join"])


# ---------------------------------------------------------------------------------------------- the cache

SIZE = 3_000_000
PARTS = [(start, start + 100_000) for start in range(0, SIZE, 100_000)]


@pytest.fixture(scope="module")
def blob(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], ObjectName]:
    """Objects of three million bytes, no two parts of which are the same."""
    store = bucket.add_store().id
    folder = tmp_path_factory.mktemp("blobs")
    for number in range(3):
        (folder / str(number)).write_bytes(_content(number))
    bucket.upload(folder, "blobs")
    return lambda number: ObjectName(store, f"s3a://{bucket.name}/blobs/{number}", SIZE, 0)


def _content(number: int) -> bytes:
    return b"".join(f"{place * 3 + number:010}".encode() for place in range(SIZE // 10))


def _note(cache: ObjectCache, name: ObjectName, parts: frozenset[tuple[int, int]], most_bytes: int) -> None:
    with open_object(name) as opened:
        cache.note(opened, parts, most_bytes)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["note", "hold"]), st.integers(0, 2), st.frozensets(st.sampled_from(PARTS))
        ),
        max_size=12,
    ),
    st.sampled_from([250_000, 2_000_000, 100_000_000]),
)
def test_it_holds_what_was_noted_and_no_more_than_it_may(
    blob: Callable[[int], ObjectName],
    steps: list[tuple[str, int, frozenset[tuple[int, int]]]],
    most_bytes: int,
) -> None:
    cache = ObjectCache()
    noted: dict[int, set[tuple[int, int]]] = {0: set(), 1: set(), 2: set()}
    for step, number, parts in steps:
        if step == "note":
            _note(cache, blob(number), parts, most_bytes)
            noted[number] |= parts
            continue
        with cache.hold(blob(number), parts) as path:
            if path is None:
                continue
            assert parts <= noted[number]
            with Path(path).open("rb") as file:
                for start, end in parts:
                    file.seek(start)
                    assert file.read(end - start) == _content(number)[start:end]
        assert cache.held_bytes <= most_bytes
    cache.close()
    assert cache.held_bytes == 0


def test_a_table_larger_than_the_cache_is_never_held(blob: Callable[[int], ObjectName]) -> None:
    cache = ObjectCache()
    everything = frozenset(PARTS)
    for _ in range(3):
        for number in range(3):
            with cache.hold(blob(number), everything) as path:
                assert path is None
            _note(cache, blob(number), everything, 2 * SIZE)
    assert cache.held_bytes == 0


def test_queries_that_want_the_same_share_what_is_fetched(
    bucket: Bucket, blob: Callable[[int], ObjectName]
) -> None:
    cache = ObjectCache()
    with faulty_proxy(bucket.port, lambda request: None) as proxy:
        name = ObjectName(bucket.add_store(proxy.port).id, blob(0).path, SIZE, 0)
        _note(cache, name, frozenset(PARTS), 2 * SIZE)
        paths: list[str | None] = []

        def hold() -> None:
            with cache.hold(name, frozenset(PARTS)) as path:
                paths.append(path)

        threads = [threading.Thread(target=hold) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(set(paths)) == 1
        assert sum(request.reads_data for request in proxy.requests) == 1
    cache.close()


def test_a_file_in_use_stays_when_its_object_is_dropped(blob: Callable[[int], ObjectName]) -> None:
    cache = ObjectCache()
    parts = frozenset(PARTS[:2])
    _note(cache, blob(0), parts, SIZE)
    with cache.hold(blob(0), parts) as path:
        assert path is not None
        cache.close()
        assert Path(path).read_bytes()[:200_000] == _content(0)[:200_000]
    assert cache.held_bytes == 0


def test_an_object_that_is_not_as_planned(blob: Callable[[int], ObjectName]) -> None:
    cache = ObjectCache()
    _note(cache, blob(0), frozenset(PARTS), SIZE)
    other = ObjectName(blob(0).store, blob(0).path, SIZE - 1, 0)
    with pytest.raises(DataError, match="changed"), cache.hold(other, frozenset(PARTS)):
        pass
