# SPDX-License-Identifier: Apache-2.0
"""Shuffle stores: they hold exchanged data between the task that writes it and the tasks that read it.

Batches of one attempt enter, by partition. Once the attempt has committed, anyone who has the name of a block can read
it. A store knows nothing about plans, and it never decides which attempt wins.
"""

from volley.shuffle.base import Block, CheckpointStore, SharedStore, ShuffleSink, ShuffleStore, StoreFactory
from volley.shuffle.config import RetryPolicy, ShuffleConfig

__all__ = [
    "Block",
    "CheckpointStore",
    "RetryPolicy",
    "SharedStore",
    "ShuffleConfig",
    "ShuffleSink",
    "ShuffleStore",
    "StoreFactory",
]
