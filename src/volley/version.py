# SPDX-License-Identifier: Apache-2.0
"""The version of this package, which a process tells its peers."""

from __future__ import annotations

__version__ = "0.1.0"
