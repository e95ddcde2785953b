# SPDX-License-Identifier: Apache-2.0
"""Writes values as PySpark's workers read them. Integers are big-endian."""

from __future__ import annotations

import struct
from io import BytesIO


class Writer:
    """Collects the bytes of a message."""

    def __init__(self) -> None:
        self._out = BytesIO()

    def integer(self, value: int) -> None:
        self._out.write(struct.pack(">i", value))

    def long(self, value: int) -> None:
        self._out.write(struct.pack(">q", value))

    def boolean(self, value: bool) -> None:
        self._out.write(struct.pack(">?", value))

    def block(self, value: bytes) -> None:
        self.integer(len(value))
        self._out.write(value)

    def text(self, value: str) -> None:
        self.block(value.encode())

    def mapping(self, values: dict[str, str]) -> None:
        self.integer(len(values))
        for key, value in values.items():
            self.text(key)
            self.text(value)

    def bytes(self) -> bytes:
        return self._out.getvalue()
