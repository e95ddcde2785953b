# SPDX-License-Identifier: Apache-2.0
"""Java classes of this package that a JVM compiles in the background: most programs need them later, or never."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from volley.errors import CaptureError
from volley.plan.jvm import Java
from volley.plan.reader import describe_error, instantiate
from volley.spark_versions.java import java_source

_COMPILE_SECONDS = 120.0


class CompiledClass:
    """An instance of the class in `file`, in the JVM of `gateway`. Compiling it begins at once.

    `texts` replace words of the source that depend on the release of Spark.
    """

    def __init__(
        self, gateway: Java, file: str, *arguments: Any, texts: Mapping[str, str] | None = None
    ) -> None:
        self._file = file
        self._made: Future[Java] = Future()
        work = (self._made, gateway, file, arguments, texts or {})
        threading.Thread(target=_compile, args=work, name=f"volley-compile-{file}", daemon=True).start()

    def get_now(self) -> Java | None:
        """The instance; None as long as it is being compiled, and if that failed."""
        if not self._made.done() or self._made.exception() is not None:
            return None
        return self._made.result()

    def get(self) -> Java:
        """The instance; waits for the compiler. Raises CaptureError if it failed or takes too long."""
        try:
            return self._made.result(_COMPILE_SECONDS)
        except futures.TimeoutError as error:
            raise CaptureError(
                f"{self._file} was not compiled within {_COMPILE_SECONDS:.0f} seconds."
            ) from error


def _compile(
    made: Future[Java], gateway: Java, file: str, arguments: tuple[Any, ...], texts: Mapping[str, str]
) -> None:
    try:
        source = java_source("volley.plan", file)
        for word, text in texts.items():
            source = source.replace(word, text)
        made.set_result(instantiate(gateway, source, *arguments))
    except BaseException as error:  # whatever it is, somebody waits for it
        made.set_exception(CaptureError(f"{file} could not be compiled: {describe_error(error)}."))
