# SPDX-License-Identifier: Apache-2.0
"""Spans: who is whose child, in this process and across to a worker, by way of a stand-in for a collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from helpers.waiting import eventually
from volley.cluster import LocalCluster
from volley.process.tracing import NO_SPAN, start_span
from volley.testing.session import conf
from volley.transport.flight import close_fleets

trace: Any = pytest.importorskip("opentelemetry.trace")
sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
proto: Any = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACED = {"spark.volley.tracing": "true", "spark.volley.history.dir": "off"}


@pytest.fixture(scope="module")
def provider() -> Any:
    """A process has one, for good."""
    provider = sdk.TracerProvider()
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def spans(provider: Any) -> Iterator[Any]:
    exporter = memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


def grouped(spark: SparkSession) -> int:
    frame = spark.range(20_000).withColumn("k", F.col("id") % 7)
    return len(frame.join(frame.groupBy("k").count(), "k").groupBy("k").agg(F.sum("count")).collect())


@pytest.mark.embedded
def test_a_query_and_its_parts(distributed: SparkSession, spans: Any) -> None:
    settings = TRACED | {"spark.volley.local.workers": "2", "spark.sql.autoBroadcastJoinThreshold": "-1"}
    with conf(distributed, settings), trace.get_tracer("tests").start_as_current_span("program"):
        assert grouped(distributed) == 7
    found = {name: [span for span in spans.get_finished_spans() if span.name == name] for name in NAMES}
    (program,), (query,) = found["program"], found["volley.query"]
    assert query.parent.span_id == program.context.span_id
    assert query.attributes["volley.engine"] == "native"
    assert query.attributes["volley.rows"] == 7
    stages = {span.context.span_id: span for span in found["volley.stage"]}
    assert len(stages) > 1
    assert {span.parent.span_id for span in stages.values()} == {query.context.span_id}
    for name in ("volley.task", "volley.attempt"):
        assert {span.parent.span_id for span in found[name]} <= stages.keys()
    attempts = {span.context.span_id: span for span in found["volley.attempt"]}
    assert len(attempts) == len(found["volley.task"])
    assert found["volley.fetch"]
    assert {span.parent.span_id for span in found["volley.fetch"]} <= attempts.keys()
    everything = [span for spans in found.values() for span in spans]
    assert {span.context.trace_id for span in everything} == {program.context.trace_id}
    assert all(span.start_time <= span.end_time for span in everything)
    assert all(query.start_time <= span.start_time for span in stages.values())


NAMES = ("program", "volley.query", "volley.stage", "volley.task", "volley.attempt", "volley.fetch")


@pytest.mark.embedded
def test_failures_are_errors_and_nothing_is_traced_unasked(spark: SparkSession, spans: Any) -> None:
    spark.range(3).count()
    assert not spans.get_finished_spans()
    with conf(spark, TRACED), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(3).select(F.expr("1 / (id - 1)")).collect()
    (query,) = [span for span in spans.get_finished_spans() if span.name == "volley.query"]
    assert query.status.description == "DIVIDE_BY_ZERO"
    assert query.attributes["volley.reasons"] == "REPLAYED_ON_SPARK"
    assert start_span("volley.fetch", parent="") is NO_SPAN
    assert NO_SPAN.traceparent == ""


class Collector(ThreadingHTTPServer):
    """Takes what an exporter of OTLP sends."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                request = proto.ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    self.spans += [span for scope in resource.scope_spans for span in scope.spans]
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, format: str, *arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.mark.slow
@pytest.mark.embedded
def test_a_worker_joins_the_trace_of_its_driver(
    spark: SparkSession, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with LocalCluster(1, cores=1, memory="256m", arguments=["--tracing"]) as cluster:
        with conf(spark, TRACED | cluster.settings):
            assert grouped(spark) == 7
        close_fleets()
        cluster.members[0].process.terminate()
        eventually(lambda: any(span.name == "volley.attempt" for span in collector.spans))
    stages = {span.context.span_id for span in spans.get_finished_spans() if span.name == "volley.stage"}
    (query,) = [span for span in spans.get_finished_spans() if span.name == "volley.query"]
    attempts = [span for span in collector.spans if span.name == "volley.attempt"]
    assert {int.from_bytes(span.trace_id, "big") for span in attempts} == {query.context.trace_id}
    assert {int.from_bytes(span.parent_span_id, "big") for span in attempts} <= stages
    assert not [span for span in spans.get_finished_spans() if span.name == "volley.attempt"]
    collector.shutdown()
