# SPDX-License-Identifier: Apache-2.0
"""Worker daemons, reached over Arrow Flight."""

from __future__ import annotations

from contextlib import ExitStack

from volley.bridge.reading import Access
from volley.bridge.spark_to_native import IngestTarget
from volley.config import Config
from volley.deployment.base import absence_seconds, open_ingest, read_security, shared_store, tls_files
from volley.errors import ConfigError, QueryError
from volley.shuffle.config import ShuffleConfig
from volley.transport.base import Transport
from volley.transport.flight import FlightTransport, shared_fleet


class FlightDeployment:
    """The daemons that `spark.volley.workers` names."""

    is_remote = True
    serves_spark = True

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def runs_python(self) -> bool:
        """Whether the owners of all workers that are up let them run Python functions."""
        if not self._config.python_functions:
            return False
        try:
            found = self.open().workers()
        except QueryError:
            return False
        return bool(found) and all(worker.runs_python for worker in found)

    @property
    def absence_seconds(self) -> float:
        # A worker that was cut off comes back with its data; so does, without it, one that is restarted.
        return max(absence_seconds(self._config), self._config.worker_timeout_seconds)

    def planned_workers(self) -> int:
        return len(self._config.workers)

    def open(self) -> FlightTransport:
        config = self._config
        if not config.workers:
            raise ConfigError(
                "spark.volley.transport=flight needs spark.volley.workers.",
                hint="Start some with `volley cluster`.",
            )
        shared = shared_store(config)
        fleet = shared_fleet(
            config.workers,
            read_security(config),
            config.worker_timeout_seconds,
            ShuffleConfig.of(config).place,
        )
        return FlightTransport(fleet, shared=shared)

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        return self.open(), self._access()

    def ingest(self) -> IngestTarget:
        return open_ingest(self.open(), self._access())

    def _access(self) -> Access:
        config = self._config
        return Access(read_security(config).token, tls_files(config), ShuffleConfig.of(config))
