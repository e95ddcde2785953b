# SPDX-License-Identifier: Apache-2.0
"""Workers in the driver's own process."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from functools import partial

from pyspark import SparkContext

from volley.bridge.spark_task_reader import Access
from volley.config import Config
from volley.deployment.base import absence_seconds, credentials_of, shared_store, tls_files
from volley.deployment.embedded_memory import EmbeddedMemory
from volley.process.machine import available_cores
from volley.security import Credentials, flight_installed, is_loopback
from volley.shuffle.base import ShuffleStore
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.memory import MemoryStore
from volley.transport.base import Transport
from volley.transport.driver_hosts import driver_hosts, runs_locally
from volley.transport.local import LocalTransport


class LocalDeployment:
    """The embedded default."""

    is_remote = False
    takes_frames = True

    def __init__(self, context: SparkContext, config: Config) -> None:
        self._context = context
        self._config = config

    @property
    def runs_python(self) -> bool:
        return self._config.python_functions

    def find_jvm_problem(self, versions: str) -> str:
        return ""

    @property
    def serves_spark(self) -> bool:
        """The driver has to listen for Spark's tasks, and may do so beyond loopback only with TLS or if told to."""
        if not self._serves_itself:
            return True
        if not flight_installed():
            return False
        allowed = self._config.executor_insecure or bool(self._config.tls_certificate_file)
        return allowed or is_loopback(driver_hosts(self._context)[0])

    @property
    def absence_seconds(self) -> float:
        return absence_seconds(self._config)

    def planned_workers(self) -> int:
        return self._config.local_workers

    def open(self) -> Transport:
        return self._transport(None)

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        access = self._access()
        if not self._serves_itself:
            return self._transport(None), access
        # Spark's tasks are other processes. Nothing else in this mode needs a server, or Flight.
        from volley.bridge.block_server import DriverBlockServer
        from volley.shuffle.factory import serving_store

        served = DriverBlockServer(
            *driver_hosts(self._context),
            access.credentials.read(),
            self._config.executor_insecure,
            partial(serving_store, self._config),
        )
        resources.callback(served.close)
        return self._transport(served.store), access

    def ingest(self) -> None:
        return None

    @property
    def _serves_itself(self) -> bool:
        """Whether no store beside this process keeps rows for Spark."""
        return self._config.shuffle_store == "memory"

    def _transport(self, serving: ShuffleStore | None) -> Transport:
        memory = EmbeddedMemory.of(self._config)
        return LocalTransport(
            self._config.local_workers,
            self._config.local_cores or available_cores(),
            partial(MemoryStore, budget=memory.exchanges, directories=memory.directories),
            shared=shared_store(self._config),
            serving=serving,
            memory=memory.operators,
        )

    def _access(self) -> Access:
        store = ShuffleConfig.of(self._config)
        if not self._serves_itself:
            return Access(credentials_of(self._config), store)
        # A token for this query alone. On this machine nobody else can listen, so TLS would protect nothing.
        files = ("", "", "") if runs_locally(self._context) else tls_files(self._config)
        return Access(Credentials(secrets.token_hex(32), files), store)
