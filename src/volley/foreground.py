# SPDX-License-Identifier: Apache-2.0
"""A daemon in the foreground of its process: from the moment it is ready until a signal, or its parent's end."""

from __future__ import annotations

import os
import selectors
import signal
import threading
from collections.abc import Callable
from typing import Protocol

_SLICE_SECONDS = 0.5


class Daemon(Protocol):
    def drain(self, hurry: threading.Event) -> None:
        """Finish what runs, until nothing is left, `hurry`, or the end of the time for it."""

    def close(self) -> None:
        """Stop serving."""


def serve(daemon: Daemon, announce: Callable[[], None], parent: int | None = None) -> None:
    """Run a daemon in this process until a signal or the end of `parent`, then end the process.

    `announce` tells others where it is, when it is ready for them.
    """
    stop, hurry = threading.Event(), threading.Event()

    def signalled(number: int, frame: object) -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    signal.signal(signal.SIGTERM, signalled)
    signal.signal(signal.SIGINT, signalled)
    if parent is not None:
        die_with(parent)
    announce()
    # In slices: Python handles a signal on the main thread, which may not wake for one that another thread was given.
    while not stop.wait(_SLICE_SECONDS):
        pass
    daemon.drain(hurry)
    daemon.close()
    # Threads of Flight and DataFusion may still be in the middle of a batch that nobody wants; an orderly end of the
    # interpreter under them can abort the process.
    os._exit(0)


def die_with(parent: int) -> None:
    """End this process, at once and without ceremony, when process `parent` ends."""
    end_with(parent)
    if os.getppid() != parent:
        os._exit(1)


def end_with(process: int) -> None:
    """End this process when another one, which need not be its parent, ends."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(watched, selectors.EVENT_READ)
            selector.select()
        os._exit(1)

    threading.Thread(target=watch, name="volley-parent", daemon=True).start()
