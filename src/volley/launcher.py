# SPDX-License-Identifier: Apache-2.0
"""Runs an unchanged PySpark program, with Volley enabled for every session that it creates.

    volley run app.py --its-own arguments
    spark-submit "$(python -m volley.launcher)" app.py --its-own arguments

Without arguments it prints the path of this file, for the second form.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from volley.errors import ConnectServerElsewhere
from volley.session.enable import enable


def enable_all_sessions() -> None:
    """From here on, a session that a builder returns has Volley enabled. `spark.volley.enabled=false` still counts."""
    builder = SparkSession.Builder
    get_or_create: Callable[..., SparkSession] = builder.getOrCreate

    @wraps(get_or_create)
    def get_enabled(self: Any) -> SparkSession:
        session = get_or_create(self)
        try:
            return enable(session)
        except ConnectServerElsewhere:
            # The program connects to a Spark Connect server in another process, where Volley cannot plan.
            return session

    builder.getOrCreate = get_enabled  # type: ignore[method-assign]


def run_program(path: str, arguments: Sequence[str]) -> None:
    """Run a program as `python path arguments` would, in this process."""
    enable_all_sessions()
    sys.argv = [path, *arguments]
    # As Python does: the program's own folder comes first.
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")


def main() -> None:
    if len(sys.argv) < 2:
        print(__file__)
        return
    run_program(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
