# SPDX-License-Identifier: Apache-2.0
"""Ports of servers that tests start on this machine."""

from __future__ import annotations

import socket
import subprocess
import time


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], name: str, *, seconds: float) -> None:
    """Wait until the process listens there. RuntimeError, with the name, if it ends or takes longer."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{name} did not start")
