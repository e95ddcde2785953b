# SPDX-License-Identifier: Apache-2.0
"""No option is silently ignored: `volley.enable` says which have no effect on a session."""

from __future__ import annotations

import warnings

import pytest
from pyspark.sql import SparkSession

import volley
from volley.config import Config
from volley.deployment.option_scopes import find_without_effect
from volley.options import OPTIONS
from volley.testing.session import conf

LOCAL = {"spark.volley.transport": "local"}
FLIGHT = {"spark.volley.transport": "flight", "spark.volley.workers": "a:1"}
SPARK = {"spark.volley.transport": "spark"}
SERVICE = {"spark.volley.shuffle.store": "service", "spark.volley.shuffle.service": "a:1"}


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        (LOCAL, set()),
        (LOCAL | {"spark.volley.local.workers": "2", "spark.volley.fallback": "warn"}, set()),
        (LOCAL | {"spark.volley.workers": "a:1"}, {"workers"}),
        (LOCAL | {"spark.volley.shuffle.compression": "zstd"}, {"shuffle.compression"}),
        (LOCAL | SERVICE | {"spark.volley.shuffle.compression": "zstd"}, set()),
        (LOCAL | {"spark.volley.shuffle.replicas": "2"}, {"shuffle.replicas"}),
        (LOCAL | {"spark.volley.shuffle.spillThreshold": "0.5"}, {"shuffle.spillThreshold"}),
        (FLIGHT | {"spark.volley.shuffle.spillThreshold": "0.5"}, set()),
        (FLIGHT | SERVICE | {"spark.volley.shuffle.spillThreshold": "0.5"}, {"shuffle.spillThreshold"}),
        (FLIGHT | {"spark.volley.shuffle.port": "1"}, {"shuffle.port"}),
        (FLIGHT | {"spark.volley.shuffle.memoryFraction": "0.5"}, {"shuffle.memoryFraction"}),
        (SPARK | {"spark.volley.shuffle.memoryFraction": "0.5"}, set()),
        (SPARK | {"spark.volley.local.cores": "2"}, {"local.cores"}),
        (LOCAL | {"spark.volley.memory": "1g"}, set()),
        (FLIGHT | {"spark.volley.memory": "1g"}, {"memory"}),
        (LOCAL | {"spark.volley.local.workers": "2", "spark.volley.shuffle.memoryFraction": "0.5"}, set()),
    ],
)
def test_options_without_effect_are_found(settings: dict[str, str], ignored: set[str]) -> None:
    sentences = find_without_effect(Config.read(settings), settings)
    assert {sentence.partition(" ")[0] for sentence in sentences} == {
        f"spark.volley.{name}" for name in ignored
    }


def test_every_shuffle_option_has_a_scope() -> None:
    """In embedded mode none of them matters, but for the store itself."""
    keys = {option.key for option in OPTIONS if option.name.startswith("shuffle.")}
    sentences = find_without_effect(Config.read({}), keys)
    assert len(sentences) == len(keys) - 1


def test_enable_warns_of_them(spark: SparkSession) -> None:
    with (
        conf(spark, {"spark.volley.shuffle.retryAttempts": "7"}),
        pytest.warns(UserWarning, match=r"shuffle\.retryAttempts has no effect on this session"),
    ):
        volley.enable(spark)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        volley.enable(spark)
