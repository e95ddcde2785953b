# SPDX-License-Identifier: Apache-2.0
"""Lengths of time in microseconds, the unit of Spark's timestamps."""

from __future__ import annotations

MICROS_A_SECOND = 1_000_000
MICROS_A_DAY = 86_400 * MICROS_A_SECOND
