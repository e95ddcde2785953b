# SPDX-License-Identifier: Apache-2.0
"""The contract of a deployment: what the life of a query asks of the place where its native tasks run.

A deployment belongs to one query and costs nothing until something is opened. Connections, sidecars and stores that are
worth keeping are shared by all queries of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from volley.bridge.ingestion import IngestTarget
from volley.bridge.reading import Access
from volley.config import Config
from volley.errors import QueryError
from volley.ids import QueryId
from volley.loop import shared_loop
from volley.membership import current_addresses
from volley.own_token import token_file_for
from volley.security import Credentials, Security
from volley.shuffle.base import SharedStore
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import driver_store
from volley.transport.base import Transport

# A call to every worker and to the shared store, some of whose servers may be gone.
_BEGIN_SECONDS = 60.0
# A shared store keeps what was computed when all workers are gone, so waiting for new ones is worth while.
_ABSENCE_SECONDS = 60.0


class Deployment(Protocol):
    """Where the native tasks of one query run."""

    @property
    def is_remote(self) -> bool:
        """Whether workers are other processes, so that plans may only name what every process can make."""

    @property
    def takes_frames(self) -> bool:
        """Whether cached frames of any size can be handed to the workers: the driver is one, or reaches all of them."""

    @property
    def runs_python(self) -> bool:
        """Whether the workers run Python functions."""

    @property
    def serves_spark(self) -> bool:
        """Whether Spark's tasks can be given native rows."""

    @property
    def absence_seconds(self) -> float:
        """How long a query waits for a worker when none is left."""

    def planned_workers(self) -> int:
        """How many workers the options promise; who is there is known when a query runs."""

    def open(self) -> Transport:
        """The way to the workers, for one run. Raises NoWorkers when none answers and ConfigError for bad options."""

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        """The same for a run whose output Spark's tasks read, and how they do so. `resources` owns what serves it."""

    def ingest(self) -> IngestTarget | None:
        """Where Spark's tasks push the rows that a native plan reads; None where the worker is this process."""


def open_ingest(transport: Transport) -> IngestTarget:
    """Let the workers take rows of Spark's tasks, under a query id of their own."""
    query = QueryId.new()
    loop = shared_loop()
    endpoint = loop.submit(transport.open_ingest(query)).result(_BEGIN_SECONDS)
    assert endpoint is not None, "its workers are other processes"
    partitions = len(transport.workers())
    return IngestTarget(query, partitions, endpoint, lambda: loop.submit(transport.release(query)))


def shared_store(config: Config) -> SharedStore | None:
    """The store beside the workers; None when exchanged data lives with them."""
    if config.shuffle_store == "memory":
        return None
    return driver_store(ShuffleConfig.of(config), read_security(config))


def absence_seconds(config: Config) -> float:
    return 0.0 if config.shuffle_store == "memory" else _ABSENCE_SECONDS


def runs_python(config: Config, open_transport: Callable[[], Transport]) -> bool:
    """Whether the owners of all workers that are up let them run Python functions."""
    if not config.python_functions:
        return False
    try:
        found = open_transport().workers()
    except QueryError:
        return False
    return bool(found) and all(worker.runs_python for worker in found)


def read_security(config: Config) -> Security:
    """What this session presents to daemons and to shuffle servers."""
    daemons = (*current_addresses(config.workers), *config.shuffle_service)
    return Security.read(token_file_for(daemons, config.token_file), *tls_files(config))


def credentials_of(config: Config) -> Credentials:
    return Credentials(read_security(config).token, tls_files(config))


def tls_files(config: Config) -> tuple[str, str, str]:
    return (config.tls_ca_file, config.tls_certificate_file, config.tls_key_file)
