# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans, if OpenTelemetry is installed and tracing is enabled.

    volley.query                      the driver: one action
      volley.stage                    the driver: one stage of a native run
        volley.task                   the driver: an attempt, from its start to the news of its end
        volley.attempt                the worker: the same attempt, where it runs
          volley.fetch                the worker: one stream that reads the output of another stage

The context travels to workers as a W3C `traceparent`. Spans carry ids, numbers and codes, and nothing of the data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from volley.errors import ConfigError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span:
    """A started span; a no-op if there is no tracing. Times are in seconds since the epoch."""

    def __init__(self, span: Any = None) -> None:
        self._span = span
        self._ended = False

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` for children of this span; empty if there is no tracing."""
        if self._span is None:
            return ""
        context = self._span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set(self, **attributes: str | int | float | bool) -> None:
        if self._span is not None:
            self._span.set_attributes({f"volley.{name}": value for name, value in attributes.items()})

    def end(self, at: float | None = None, error: str | None = None) -> None:
        """End it; `error` is a code. Only the first call counts."""
        if self._span is None or self._ended:
            return
        self._ended = True
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(None if at is None else int(at * 1e9))

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error=None if error is None else str(getattr(error, "code", type(error).__name__)))


NO_SPAN = Span()


def start_span(
    name: str,
    *,
    parent: str | None = None,
    at: float | None = None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> Span:
    """Start a span below `parent`, a traceparent; below the current span of the program if that is None.

    Does nothing for an empty `parent`, and where OpenTelemetry is not installed.
    """
    if parent == "":
        return NO_SPAN
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return NO_SPAN
    context = None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})
    named = {f"volley.{key}": value for key, value in (attributes or {}).items()}
    started = None if at is None else int(at * 1e9)
    return Span(trace.get_tracer("volley").start_span(name, context, attributes=named, start_time=started))


def export_spans(service: str) -> None:
    """Send the spans of this process to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

    A program that has set up OpenTelemetry itself keeps what it has. ConfigError if it is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"tracing needs {error.name}.", hint="Run: pip install 'volley-spark[tracing]'"
        ) from error
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", service)})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def flush_spans(timeout_seconds: float = 5.0) -> None:
    """Export pending spans, for a process that ends without running its exit handlers."""
    try:
        from opentelemetry import trace
    except ImportError:
        return
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(int(timeout_seconds * 1000))
