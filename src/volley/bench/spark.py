# SPDX-License-Identifier: Apache-2.0
"""Spark sessions for commands: local, quiet, listening on loopback only."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings of a session that prints nothing and listens on loopback only."""


def start_spark(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session. `settings` override our defaults."""
    defaults = {**QUIET, "spark.driver.memory": "2g", "spark.sql.session.timeZone": "UTC"}
    return start_session(name, master, {**defaults, **settings})


def start_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session with Spark's defaults."""
    # Otherwise Spark's Python workers use the python3 on PATH, which may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _quiet_start():
        return builder.getOrCreate()


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hide what Java prints while it starts, and show it only if starting fails.

    Java inherits file descriptor 2 at its start and keeps it. Errors of queries are not lost: they are raised as
    exceptions.
    """
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(terminal, 2)
            log.seek(0)
            os.write(2, log.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
