# SPDX-License-Identifier: Apache-2.0
"""The contract of a deployment: what a query needs from the place where its native tasks run.

A deployment belongs to one query and costs nothing until something is opened. Connections, sidecars and stores that are
worth keeping are shared by all queries of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from volley.bridge.ingestion import IngestTarget
from volley.bridge.spark_task_reader import Access
from volley.config import Config
from volley.errors import QueryError
from volley.ids import QueryId
from volley.jvm.java import NOT_PERMITTED, describe_versions
from volley.membership import current_addresses
from volley.process.loop import shared_loop
from volley.rpc.messages import WorkerInfo
from volley.security import Credentials, Security
from volley.shuffle.base import SharedStore
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import driver_store
from volley.transport.base import Transport
from volley.user_token import token_file_for

# Enough for a call to every worker and shuffle server, some of which may be lost.
_BEGIN_SECONDS = 60.0
# A shared store keeps its data when all workers are lost, so waiting for new ones is worthwhile.
_ABSENCE_SECONDS = 60.0


class Deployment(Protocol):
    """Where the native tasks of one query run."""

    @property
    def is_remote(self) -> bool:
        """Whether workers are other processes, so that plans must not refer to objects of this one."""

    @property
    def takes_frames(self) -> bool:
        """Whether cached frames of any size can be handed to the workers: the driver is one, or reaches all of them."""

    @property
    def runs_python(self) -> bool:
        """Whether the workers run Python functions."""

    def find_jvm_problem(self, versions: str) -> str:
        """Why workers in other processes cannot evaluate expressions of a driver with these versions of Spark and Java
        (`volley.jvm.java`); empty if all of them can."""

    @property
    def serves_spark(self) -> bool:
        """Whether Spark's tasks can be given native rows."""

    @property
    def absence_seconds(self) -> float:
        """How long a query waits for a worker when none is left."""

    def planned_workers(self) -> int:
        """How many workers the options name. How many there are is known when a query runs."""

    def open(self) -> Transport:
        """Open a transport to the workers, for one run.

        Raises NoWorkers if none answers, and ConfigError for bad options.
        """

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        """The same for a run whose output Spark's tasks read, and how they do so. `resources` owns what serves it."""

    def ingest(self) -> IngestTarget | None:
        """Where Spark's tasks push the rows that a native plan reads; None where the worker is this process."""


def open_ingest(transport: Transport) -> IngestTarget:
    """Let the workers accept rows of Spark's tasks, under a separate query id."""
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


def find_jvm_problem(versions: str, open_transport: Callable[[], Transport]) -> str:
    """Why not all workers that are up can evaluate expressions of a driver with these versions; empty if they can."""
    try:
        found = open_transport().workers()
    except QueryError as error:
        return error.message
    return describe_jvm_problem(versions, found)


def describe_jvm_problem(versions: str, workers: Sequence[WorkerInfo]) -> str:
    for worker in workers:
        if worker.jvm and worker.jvm != versions:
            return (
                f"worker {worker.name} has {describe_versions(worker.jvm)}, the driver has "
                f"{describe_versions(versions)}: install the same"
            )
        if not worker.jvm:
            return f"worker {worker.name}: {worker.no_jvm or NOT_PERMITTED.problem}"
    return "" if workers else "no worker answers"


def read_security(config: Config) -> Security:
    """What this session presents to daemons and to shuffle servers."""
    daemons = (*current_addresses(config.workers), *config.shuffle_service)
    return Security.read(token_file_for(daemons, config.token_file), *tls_files(config))


def credentials_of(config: Config) -> Credentials:
    return Credentials(read_security(config).token, tls_files(config))


def tls_files(config: Config) -> tuple[str, str, str]:
    return (config.tls_ca_file, config.tls_certificate_file, config.tls_key_file)
