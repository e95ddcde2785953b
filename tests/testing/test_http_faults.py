# SPDX-License-Identifier: Apache-2.0
"""The HTTP proxy passes on whole requests only."""

from __future__ import annotations

import socket
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from volley.testing.http_faults import Fault, faulty_proxy


class Recorder(BaseHTTPRequestHandler):
    bodies: list[bytes]

    def do_PUT(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_request_whose_client_gave_up_is_not_passed_on() -> None:
    """The server would wait for the rest of its body, and so would everybody who waits for the server."""
    bodies: list[bytes] = []
    with HTTPServer(("127.0.0.1", 0), type("_Recorder", (Recorder,), {"bodies": bodies})) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        with faulty_proxy(server.server_port, lambda request: None) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
                connection.sendall(b"PUT /a HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
            whole = urllib.request.Request(f"http://127.0.0.1:{proxy.port}/a", b"whole", method="PUT")
            urllib.request.urlopen(whole, timeout=10).close()
            assert [request.path for request in proxy.requests] == ["/a"]
        server.shutdown()
        thread.join()
    assert bodies == [b"whole"]


def test_bad_answers_are_counted_by_their_kind() -> None:
    with faulty_proxy(1, lambda request: Fault.BUSY) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
        assert proxy.hits == {Fault.BUSY: 1}
        assert proxy.injected == 1
