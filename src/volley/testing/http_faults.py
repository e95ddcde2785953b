# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy on loopback that answers some requests badly: late, not at all, with an error, or with half of the
body."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Fault(Enum):
    """What goes wrong with a request."""

    RESET = "the connection is closed without an answer"
    BUSY = "503 SlowDown"
    DENIED = "403 AccessDenied"
    NO_UPLOAD = "404 NoSuchUpload"
    LOST = "the request is served, and the connection is closed without an answer"
    TRUNCATED = "the connection is closed in the middle of the body"
    LATE = "the answer comes after `delay_seconds`"


_ERRORS = (Fault.BUSY, Fault.DENIED, Fault.NO_UPLOAD)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    number: int
    """Counts all requests, from 1."""

    @property
    def reads_data(self) -> bool:
        return self.method == "GET" and "?" not in self.path


Faults = Callable[[Request], Fault | None]


class FaultyProxy:
    """Forwards to the server at `port`. `faults` decides what goes wrong with each request."""

    def __init__(self, port: int, faults: Faults, delay_seconds: float) -> None:
        self.requests: list[Request] = []
        self.hits: Counter[Fault] = Counter()
        self._target = port
        self._faults = faults
        self._delay_seconds = delay_seconds
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def injected(self) -> int:
        return self.hits.total()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        if len(body) < length:
            # The client has given up. A server would wait for the rest.
            handler.close_connection = True
            return
        with self._lock:
            request = Request(handler.command, handler.path, len(self.requests) + 1)
            self.requests.append(request)
        fault = self._faults(request)
        with self._lock:
            if fault is not None:
                self.hits[fault] += 1
        if fault is Fault.RESET:
            handler.close_connection = True
            return
        if fault in _ERRORS:
            status, code = fault.value.split()
            text = f"<Error><Code>{code}</Code><Message>The request failed.</Message></Error>".encode()
            handler.send_response(int(status))
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(b"" if request.method == "HEAD" else text)
            return
        if fault is Fault.LATE:
            time.sleep(self._delay_seconds)
        self._forward(handler, body, fault)

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes, fault: Fault | None) -> None:
        cut = fault is Fault.TRUNCATED
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30)
        try:
            connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            if fault is Fault.LOST:
                handler.close_connection = True
                return
            handler.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    handler.send_header(name, value)
            if answer.getheader("Content-Length") is None:
                handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[: len(data) // 2] if cut else data)
            handler.close_connection = cut
        finally:
            connection.close()


@contextmanager
def faulty_proxy(port: int, faults: Faults, delay_seconds: float = 0.2) -> Iterator[FaultyProxy]:
    """Run the proxy for the duration of a block."""
    proxy = FaultyProxy(port, faults, delay_seconds)
    proxy.serve()
    try:
        yield proxy
    finally:
        proxy.close()
