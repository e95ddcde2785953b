# SPDX-License-Identifier: Apache-2.0
"""Workers behind a transport of another package."""

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
from volley.errors import QueryError
from volley.membership import current_addresses
from volley.plugins import TRANSPORTS, load
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.session_options import options_to_send
from volley.transport.base import Transport, TransportContext, TransportFactory


class PluginDeployment:
    """The workers of the plug-in that `spark.volley.transport` names. ConfigError if it cannot be loaded."""

    is_remote = True
    takes_frames = False

    def __init__(self, name: str, config: Config) -> None:
        self._factory: TransportFactory = load(TRANSPORTS, name)
        self._config = config

    @property
    def runs_python(self) -> bool:
        return runs_python(self._config, self.open)

    def find_jvm_problem(self, versions: str) -> str:
        return find_jvm_problem(versions, self.open)

    @property
    def serves_spark(self) -> bool:
        """Only a shared store: Spark's tasks do not know how to reach the workers of a plug-in."""
        return self._config.shuffle_store != "memory"

    @property
    def absence_seconds(self) -> float:
        return absence_seconds(self._config)

    def planned_workers(self) -> int:
        try:
            return len(self.open().workers())
        except QueryError:
            return 1

    def open(self) -> Transport:
        config = self._config
        return self._factory(
            TransportContext(
                settings=dict(config.plugin),
                workers=current_addresses(config.workers),
                timeout_seconds=config.worker_timeout_seconds,
                security=read_security(config),
                shared=shared_store(config),
                worker_settings=options_to_send(config),
            )
        )

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        return self.open(), Access(credentials_of(self._config), ShuffleConfig.of(self._config))

    def ingest(self) -> IngestTarget:
        return open_ingest(self.open())
