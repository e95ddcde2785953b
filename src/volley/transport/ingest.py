# SPDX-License-Identifier: Apache-2.0
"""Where Spark tasks push the rows that a native query reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class IngestEndpoint:
    """The worker daemons at `addresses`, which hold the rows for `driver`; or the sidecar of the task's own executor.

    `sidecars` is the broadcast of the sidecars' settings. A task that pushes to its sidecar must first register it with
    the driver, at `control`.
    """

    addresses: tuple[str, ...] = ()
    driver: str = ""
    sidecars: Any = None
    control: str = ""
