# SPDX-License-Identifier: Apache-2.0
"""The in-process transport keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from volley.shuffle.memory import MemoryStore
from volley.testing.contracts import TransportContract
from volley.transport.base import Transport
from volley.transport.local import LocalTransport


class TestLocalTransport(TransportContract):
    @pytest.fixture
    def make_transport(self) -> Callable[[int], Transport]:
        return lambda workers: LocalTransport(workers, 2, MemoryStore)
