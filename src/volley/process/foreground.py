# SPDX-License-Identifier: Apache-2.0
"""Runs a daemon in the foreground until a signal arrives or its parent process ends."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import threading
from collections.abc import Callable
from typing import Protocol

from volley.process.tracing import flush_spans

_log = logging.getLogger(__name__)

_SLICE_SECONDS = 0.5


class Daemon(Protocol):
    def drain(self, hurry: threading.Event) -> None:
        """Finish running work. Returns when it is done, when `hurry` is set, or after a timeout."""

    def close(self) -> None:
        """Stop serving."""


def serve(daemon: Daemon, announce: Callable[[], None], parent: int | None = None) -> None:
    """Run a daemon until a signal arrives or process `parent` ends, then exit this process.

    `announce` is called once the daemon can be stopped by signals.
    """
    stop, hurry = threading.Event(), threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    if parent is not None:
        die_with(parent)
    announce()
    _log.info("process %d serves", os.getpid())
    # Poll: Python handles signals on the main thread, which may sleep on if another thread receives the signal.
    while not stop.wait(_SLICE_SECONDS):
        pass
    _log.info("draining: nothing new is accepted, and what runs is finished")
    daemon.drain(hurry)
    _log.info("stopping%s", ", at a second signal" if hurry.is_set() else "")
    daemon.close()
    flush_spans()
    # Threads of Flight and DataFusion may still be working on a batch that nobody needs. Shutting down the interpreter
    # under them can abort the process.
    os._exit(0)


def die_with(parent: int) -> None:
    """Exit this process immediately when its parent process ends."""
    end_with(parent)
    if os.getppid() != parent:
        os._exit(1)


def end_with(process: int) -> None:
    """Exit this process immediately when another one, not necessarily its parent, ends."""
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
