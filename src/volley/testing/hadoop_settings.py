# SPDX-License-Identifier: Apache-2.0
"""Settings of a file system of Hadoop, which tests change while it is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def change_settings(configuration: Any, settings: Mapping[str, str | None]) -> None:
    """Change a `Configuration` of a session's JVM; None removes a setting."""
    for key, value in settings.items():
        if value is None:
            configuration.unset(key)
        else:
            configuration.set(key, value)
