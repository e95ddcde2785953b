# SPDX-License-Identifier: Apache-2.0
"""A worker daemon beside a Spark executor: `python -m volley.transport.sidecar`, with its settings as JSON on stdin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from volley.config import Config
from volley.jvm.java import executor_java
from volley.options import PREFIX
from volley.process.foreground import end_with
from volley.security import Security
from volley.shuffle.factory import ShuffleSettings
from volley.shuffle.location import started_ticks
from volley.transport.sidecar_launcher import Executor, SidecarSettings
from volley.worker.daemon import Daemon, DaemonSettings, serve
from volley.worker.scratch import remove_on_exit

# The sidecar ends with its executor, and the executor with its application: no lease has to expire before.
_FOREVER_SECONDS = 10.0 * 365 * 86400


def main(words: dict[str, Any]) -> None:
    executor = Executor(**words["executor"])
    settings = SidecarSettings(**words["settings"])
    ready = Path(words["ready"])
    end_with(executor.pid)
    if executor.python_daemon:
        end_with(executor.python_daemon)
    ca, certificate, key = settings.files
    daemon = Daemon(
        DaemonSettings(
            host=executor.host,
            port=0,
            cores=settings.cores_a_task,
            slots=max(1, executor.cores // settings.cores_a_task),
            memory_bytes=settings.memory_bytes,
            directories=tuple(map(Path, words["directories"])),
            shuffle=ShuffleSettings.of(Config.read({PREFIX + k: v for k, v in settings.options.items()})),
            lease_seconds=_FOREVER_SECONDS,
            insecure=settings.insecure,
            # The executor runs the functions of its application anyway, and only that application has the token.
            python_functions=True,
            java=executor_java(executor.pid),
        ),
        Security.read("", ca, certificate, key, environment={"VOLLEY_TOKEN": settings.token}),
    )
    remover = remove_on_exit([ready.parent])

    def announce() -> None:
        found = {"address": daemon.address, "pid": os.getpid(), "started": started_ticks(os.getpid())}
        written = ready.with_suffix(".new")
        written.write_text(json.dumps(found))
        written.rename(ready)

    try:
        serve(daemon, announce)
    finally:
        remover.communicate()


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
