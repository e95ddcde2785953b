#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for `java ... ExpressionServer`, which takes seconds to start: a program gives its argument back.

A program whose content is the path of a FIFO first waits until that has been written.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from pathlib import Path

_HEAD = struct.Struct(">iq")
_programs: dict[int, bytes] = {}


def main() -> None:
    print("OpenJDK 64-Bit Server VM warning: this goes to standard output", flush=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[-1])
    listener.listen()
    threading.Thread(target=accept, args=[listener], daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


def accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=[connection], daemon=True).start()


def serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    while head := stream.read(_HEAD.size):
        program, length = _HEAD.unpack(head)
        content = stream.read(length)
        if program == 0:
            _programs[struct.unpack(">i", content[:4])[0]] = content[4:]
            content = b""
        elif _programs[program].startswith(b"/"):
            Path(os.fsdecode(_programs[program])).read_bytes()
        connection.sendall(_HEAD.pack(0, len(content)) + content)


if __name__ == "__main__":
    main()
