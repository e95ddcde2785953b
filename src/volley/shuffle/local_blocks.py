# SPDX-License-Identifier: Apache-2.0
"""Reads blocks of other processes on this host directly from the files that they have open."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from volley.errors import BlockMissing
from volley.shuffle.base import Block
from volley.shuffle.chunks import Index
from volley.shuffle.location import Location
from volley.shuffle.segments import SegmentName


@dataclass(frozen=True)
class Handle:
    """Where the index of a block is stored."""

    segment: SegmentName
    start: int
    size_bytes: int

    def __str__(self) -> str:
        name = self.segment
        return (
            f"{name.descriptor}:{name.device}:{name.inode}:{name.in_memory:d}:{self.start}:{self.size_bytes}"
        )

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parse the output of `str`. Raises ValueError for anything else."""
        if not re.fullmatch(r"\d+(:\d+){5}", text, re.ASCII):
            raise ValueError(f"{text!r} is no handle")
        descriptor, device, inode, in_memory, start, size_bytes = map(int, text.split(":"))
        return cls(SegmentName(descriptor, device, inode, bool(in_memory)), start, size_bytes)


def open_peer(block: Block, holder: Location) -> tuple[Index, list[pa.NativeFile]]:
    """Open the index of a block and the files that it names.

    Raises OSError if this process may not open them, so that they must be fetched from the holder, and BlockMissing
    if the holder has ended.
    """
    try:
        handle = Handle.parse(block.handle)
    except ValueError:
        raise BlockMissing(f"{block} has the handle {block.handle!r:.60}.", attempt=block.attempt) from None
    try:
        with handle.segment.open(holder.pid) as file:
            file.seek(handle.start)
            packed = file.read_buffer(min(handle.size_bytes, file.size()))
        # If the holder is still alive, the file is the holder's: a pid is not reused while its process lives.
        check_alive(block, holder)
        index = Index.unpack(packed, block)
        files = [name.open(holder.pid) for name in index.files]
    except OSError:
        check_alive(block, holder)
        raise
    check_alive(block, holder)
    return index, files


def check_alive(block: Block, holder: Location) -> None:
    if not holder.alive:
        raise BlockMissing(
            f"{block} was held by process {holder.pid} at {holder.address}, which has ended.",
            attempt=block.attempt,
        )
