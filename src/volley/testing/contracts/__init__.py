# SPDX-License-Identifier: Apache-2.0
"""The contracts of the protocols as test suites. An implementation subclasses its suite and provides the fixture.

class TestMemoryStore(ShuffleStoreContract):
    @pytest.fixture
    def store(self) -> ShuffleStore:
        return MemoryStore("here")
"""

from __future__ import annotations

from volley.testing.contracts.attempts import NUMBER, attempt_id, batch_of, in_a_query, numbers, query_id
from volley.testing.contracts.checkpoint_store import CheckpointStoreContract
from volley.testing.contracts.shared_store import SharedStoreContract
from volley.testing.contracts.shuffle_store import ShuffleStoreContract, read_values, write_block
from volley.testing.contracts.split_source import (
    SplitReaderContract,
    SplitSourceContract,
    source_scan,
    splits_of,
)
from volley.testing.contracts.transport import (
    TransportContract,
    commit_task,
    number_files,
    result_task,
    stage_task,
    start_task,
)

__all__ = [
    "NUMBER",
    "CheckpointStoreContract",
    "SharedStoreContract",
    "ShuffleStoreContract",
    "SplitReaderContract",
    "SplitSourceContract",
    "TransportContract",
    "attempt_id",
    "batch_of",
    "commit_task",
    "in_a_query",
    "number_files",
    "numbers",
    "query_id",
    "read_values",
    "result_task",
    "source_scan",
    "splits_of",
    "stage_task",
    "start_task",
    "write_block",
]
