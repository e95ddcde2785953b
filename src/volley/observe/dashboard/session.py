# SPDX-License-Identifier: Apache-2.0
"""`volley.dashboard(spark)`: the dashboard of a session's history and workers."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import Config
from volley.deployment.base import read_security
from volley.errors import ConfigError
from volley.frame_cache.store import frame_cache
from volley.membership import current_addresses
from volley.observe.dashboard.server import Dashboard, Site
from volley.observe.history_writer import history_directory
from volley.session_settings import read_settings


def dashboard(
    spark: SparkSession,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    certificate_file: str = "",
    key_file: str = "",
    insecure: bool = False,
) -> Dashboard:
    """Serve the dashboard from this process: the history that the session writes to, its workers and cached frames.

    Its `url` is for a browser. It listens on loopback only, on any free port, unless told otherwise; beyond loopback it
    asks for a token, which is part of the `url`, and needs TLS or `insecure`. Needs the extra `dashboard`.
    """
    config = Config.read(read_settings(spark))
    directory = history_directory(config.history_dir)
    if directory is None:
        raise ConfigError(
            "this session keeps no history.", hint="Unset spark.volley.history.dir, or name a folder."
        )
    members = (*config.workers, *config.shuffle_service)
    site = Site(host, port, token, certificate_file, key_file, insecure)
    security = read_security(config) if members else None
    return Dashboard([directory], site, lambda: current_addresses(members), security, frame_cache().frames)
