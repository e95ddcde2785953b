# SPDX-License-Identifier: Apache-2.0
"""Where rows of Spark's come in: what a task of Spark's must know to give them to a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class IngestEndpoint:
    """The worker daemons at `addresses`, which hold them for `driver`; or, with `sidecars`, that of a task's executor.

    `sidecars` is what they are started with, as Spark broadcast it. Who fills one tells the driver first, at `control`.
    """

    addresses: tuple[str, ...] = ()
    driver: str = ""
    sidecars: Any = None
    control: str = ""
