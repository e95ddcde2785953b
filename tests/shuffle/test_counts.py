# SPDX-License-Identifier: Apache-2.0
"""Metrics of a shuffle server miss nothing, however many readers there are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.service_calls import QUERY, written
from volley.shuffle.base import BlockRequest
from volley.testing.contracts import batch_of
from volley.testing.services import serve_shuffle, service_store

_READERS = 8
_READS = 300


@pytest.fixture
def often_interrupted() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_interrupted")
def test_every_read_is_counted(tmp_path: Path) -> None:
    with serve_shuffle(tmp_path) as (server,):
        store = service_store([server.address], QUERY.value)
        block = written(store, batch_of(*range(10)))
        state = server.server_state
        before = state.counts["blocks_read"]

        def read() -> None:
            for _ in range(_READS):
                list(state.frames(BlockRequest((block,))))

        readers = [threading.Thread(target=read) for _ in range(_READERS)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert state.counts["blocks_read"] - before == _READERS * _READS
        store.close()
