# SPDX-License-Identifier: Apache-2.0
"""Spark's own Connect server, in the JVM of this process, and the calls that are passed on to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from pyspark import SparkContext

from volley.connect.local_server import SERVICE
from volley.plan.jvm import singleton

SERVICE_PATH = "/spark.connect.SparkConnectService/"

# Only this process connects to it.
_BINDING = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
_TOKEN = "spark.connect.authenticate.token"

# Request metadata that belongs to the client's own connection.
_OF_CONNECTION = frozenset({"authorization", "user-agent", "content-type", "te"})

# Spark limits messages itself, in both directions. The text of its errors is in metadata.
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 24),
]

# A pair of a request's metadata; a binary value has a key that ends in -bin.
Metadata = Sequence[tuple[str, str | bytes]]


class Backend:
    """Runs from construction until `close`. May be used from any thread."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        token = secrets.token_hex(32)
        self._service = singleton(context._gateway, f"{SERVICE}.SparkConnectService")
        settings = context._jsc.sc().conf()
        before = {key: _get(settings, key) for key in (*_BINDING, _TOKEN)}
        _set(settings, {**_BINDING, _TOKEN: token})
        try:
            self._service.start(context._jsc.sc())
        finally:
            # Sessions can read the settings of the application, and must not see these.
            _set(settings, before)
        self._authorization = ("authorization", f"Bearer {token}")
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self._service.localPort()}", _CHANNEL_OPTIONS)

    def call(self, name: str, request: bytes, metadata: Metadata = ()) -> bytes:
        """The answer to a request that has one, by the name of the method. Raises grpc.RpcError as the server does."""
        method = self._channel.unary_unary(SERVICE_PATH + name)
        answer: bytes = method(request, metadata=self._metadata(metadata))
        return answer

    def pass_on(
        self,
        path: str,
        requests: Iterable[bytes],
        metadata: Metadata,
        on_end: Callable[[Callable[[], None]], bool],
    ) -> Iterator[bytes]:
        """The answers to a call of any kind. Raises grpc.RpcError as the server does.

        `on_end` takes what to call when the client has gone; False if it has gone already.
        """
        call: Any = self._channel.stream_stream(path)(iter(requests), metadata=self._metadata(metadata))
        if not on_end(call.cancel):
            call.cancel()  # the client has gone already, and nobody would call back
        yield from call

    def setting(self, key: str, default: str) -> str:
        """A setting of the application."""
        return _get(self.context._jsc.sc().conf(), key) or default

    def close(self) -> None:
        self._channel.close()
        jvm: Any = self.context._jvm
        none = jvm.scala.Option.empty()
        self._service.stop(none, none)

    def _metadata(self, given: Metadata) -> Metadata:
        passed = [
            (key, value) for key, value in given if key not in _OF_CONNECTION and not key.startswith("grpc-")
        ]
        return [*passed, self._authorization]


def _get(settings: Any, key: str) -> str | None:
    found = settings.getOption(key)
    return str(found.get()) if found.isDefined() else None


def _set(settings: Any, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            settings.remove(key)
        else:
            settings.set(key, value)
