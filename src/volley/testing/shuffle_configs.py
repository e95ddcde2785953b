# SPDX-License-Identifier: Apache-2.0
"""Shuffle options for tests: the defaults, with few and fast retries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from volley.config import Config
from volley.shuffle.config import RetryPolicy, ShuffleConfig

RETRY = RetryPolicy(1, 0.01, 10.0)


def shuffle_config(**changes: Any) -> ShuffleConfig:
    return replace(ShuffleConfig.of(Config.read({})), **({"retry": RETRY} | changes))
