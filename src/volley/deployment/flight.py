# SPDX-License-Identifier: Apache-2.0
"""Worker daemons, reached over Arrow Flight."""

from __future__ import annotations

from contextlib import ExitStack

from volley.bridge.ingestion import IngestTarget
from volley.bridge.spark_task_reader import Access
from volley.config import Config
from volley.deployment.base import (
    absence_seconds,
    credentials_of,
    find_jvm_problem,
    open_ingest,
    read_security,
    runs_python,
    shared_store,
)
from volley.errors import ConfigError
from volley.membership import current_addresses
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.session_options import options_to_send
from volley.transport.base import Transport
from volley.transport.flight import FlightTransport, lease_fleet


class FlightDeployment:
    """The daemons that `spark.volley.workers` names."""

    is_remote = True
    takes_frames = True
    serves_spark = True

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def runs_python(self) -> bool:
        return runs_python(self._config, self.open)

    def find_jvm_problem(self, versions: str) -> str:
        return find_jvm_problem(versions, self.open)

    @property
    def absence_seconds(self) -> float:
        # A worker that was cut off returns with its data, and a restarted one without it.
        return max(absence_seconds(self._config), self._config.worker_timeout_seconds)

    def planned_workers(self) -> int:
        return len(current_addresses(self._config.workers))

    def open(self) -> FlightTransport:
        config = self._config
        if not config.workers:
            raise ConfigError(
                "spark.volley.transport=flight needs spark.volley.workers.",
                hint="Start some with `volley cluster`.",
            )
        shared = shared_store(config)
        fleet = lease_fleet(config.workers, read_security(config), config.worker_timeout_seconds)
        return FlightTransport(
            fleet,
            shared=shared,
            credentials=credentials_of(config),
            stall_seconds=config.shuffle_timeout_seconds,
            settings=options_to_send(config),
        )

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        return self.open(), self._access()

    def ingest(self) -> IngestTarget:
        return open_ingest(self.open())

    def _access(self) -> Access:
        return Access(credentials_of(self._config), ShuffleConfig.of(self._config))
