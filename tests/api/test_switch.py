# SPDX-License-Identifier: Apache-2.0
"""Who turns Volley on and off: an operator's explicit `false` wins over a program's `volley.enable`."""

from __future__ import annotations

import warnings

import pytest
from pyspark.sql import SparkSession

import volley
from volley.errors import ConfigError
from volley.support.reasons import Reason
from volley.testing.session import conf


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, on which nobody has turned Volley on."""
    return spark.newSession()


def engine(spark: SparkSession) -> str | None:
    spark.range(3).count()
    report = volley.last_query(spark)
    return report.engine if report else None


def test_a_session_is_off_until_it_is_enabled(session: SparkSession) -> None:
    assert engine(session) is None
    explanation = volley.explain(session.range(3))
    assert "Volley runs" not in str(explanation)
    assert str(explanation).startswith("Volley is off on this session, so Spark runs this query.")
    assert explanation.fraction == 1
    assert not explanation.native
    assert explanation.reasons[0].reason == Reason.DISABLED
    volley.enable(session)
    assert str(volley.explain(session.range(3))).startswith("Volley runs this query")
    assert engine(session) == "native"


def test_an_explicit_false_wins(session: SparkSession) -> None:
    session.conf.set("spark.volley.enabled", "false")
    with pytest.warns(UserWarning, match="stays off") as caught:
        volley.enable(session)
    assert caught[0].filename == __file__
    assert engine(session) == "spark"
    volley.disable(session)
    with pytest.warns(UserWarning, match="stays off"):
        volley.enable(session)
    session.conf.set("spark.volley.enabled", "true")
    assert engine(session) == "native"


def test_a_session_that_the_program_disabled_can_be_enabled(session: SparkSession) -> None:
    volley.enable(session)
    volley.disable(session)
    volley.disable(session)
    assert engine(session) == "spark"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        volley.enable(session)
    assert engine(session) == "native"


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_what_is_neither_true_nor_false_is_an_error(spark: SparkSession, value: str) -> None:
    with conf(spark, {"spark.volley.enabled": value}):
        for use in (volley.enable, lambda spark: spark.range(3).count()):
            with pytest.raises(ConfigError, match=r"spark\.volley\.enabled=.*expected true or false"):
                use(spark)
