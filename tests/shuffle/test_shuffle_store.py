# SPDX-License-Identifier: Apache-2.0
"""A worker's store keeps the contract, however far its reader is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from volley.shuffle.base import ShuffleStore
from volley.shuffle.location import Location
from volley.testing.contracts import ShuffleStoreContract
from volley.testing.holders import Holder, SplitStore, new_store

COMPRESSIONS = ("none", "lz4", "zstd", "auto")
# No room in memory at all: everything goes to disk.
NO_MEMORY = {"memory_limit_bytes": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spill")


class TestOwnMemory(ShuffleStoreContract):
    @pytest.fixture
    def store(self, directory: Path) -> ShuffleStore:
        return new_store(Location.here("nowhere"), [directory])


@pytest.mark.parametrize("compression", COMPRESSIONS, scope="class")
class TestOwnDisk(ShuffleStoreContract):
    @pytest.fixture
    def store(self, directory: Path, compression: str) -> ShuffleStore:
        return new_store(Location.here("nowhere"), [directory], compression=compression, **NO_MEMORY)


class _OtherProcess(ShuffleStoreContract):
    """Writes in another process, reads in this one."""

    options: ClassVar[dict[str, int]] = {}
    mapped = True

    @pytest.fixture(scope="class")
    @classmethod
    def holder(cls, directory: Path, compression: str) -> Iterator[Holder]:
        holder = Holder([directory], compression=compression, **cls.options)
        yield holder
        holder.kill()

    @pytest.fixture
    def store(self, holder: Holder, directory: Path, compression: str) -> Iterator[ShuffleStore]:
        holder.renew()
        reader = new_store(
            Location.here("nowhere"), [directory], compression=compression, map_same_host=self.mapped
        )
        yield SplitStore(holder, reader)
        reader.close()


@pytest.mark.parametrize("compression", ["auto"], scope="class")
class TestSameHostMemory(_OtherProcess):
    pass


@pytest.mark.parametrize("compression", ["auto"], scope="class")
class TestSameHostDisk(_OtherProcess):
    options = NO_MEMORY


@pytest.mark.parametrize("compression", COMPRESSIONS, scope="class")
class TestFlightFromMemory(_OtherProcess):
    mapped = False


@pytest.mark.parametrize("compression", ["auto", "none"], scope="class")
class TestFlightFromDisk(_OtherProcess):
    options = NO_MEMORY
    mapped = False
