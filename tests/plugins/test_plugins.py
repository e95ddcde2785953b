# SPDX-License-Identifier: Apache-2.0
"""Plug-ins are found by name or by path; what cannot be used says why, and what could be."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.plugin_packages import write_metadata
from volley.cli.checks import check_plugins
from volley.config import Config
from volley.errors import ConfigError
from volley.plugins import SOURCES, STORES, TRANSPORTS, implements, installed, load
from volley.testing.session import conf


@implements(1)
def make_nothing(*arguments: object, **options: object) -> None:
    return None


@implements(99)
def make_from_the_future(*arguments: object, **options: object) -> None:
    return None


def make_undeclared(*arguments: object, **options: object) -> None:
    return None


HERE = __name__
ENTRIES = {
    "volley.transports": {
        "quick": f"{HERE}:make_nothing",
        "future": f"{HERE}:make_from_the_future",
        "undeclared": f"{HERE}:make_undeclared",
        "broken": "volley_no_such_module:make",
    },
    "volley.shuffle_stores": {"shelf": f"{HERE}:make_nothing"},
    "volley.sources": {"plugin_numbers": "helpers.plugin_packages:PluginNumbers"},
}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metadata(tmp_path, "volley_things", "1.2", ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)


def test_entry_points_are_found(plugins: None) -> None:
    names = {plugin.name: str(plugin) for plugin in installed(TRANSPORTS)}
    assert set(names) == set(ENTRIES["volley.transports"])
    assert names["quick"] == "quick (volley_things 1.2)"
    assert [plugin.name for plugin in installed(STORES)] == ["shelf"]
    assert [plugin.name for plugin in installed(SOURCES)] == ["plugin_numbers"]


def test_a_factory_is_loaded_by_name_and_by_path(plugins: None) -> None:
    assert load(TRANSPORTS, "quick") is make_nothing
    assert load(STORES, f"{HERE}:make_nothing") is make_nothing


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("future", "implements version 99 of its protocol, not 1"),
        ("undeclared", "implements version None of its protocol"),
        ("broken", "cannot be imported from volley_no_such_module:make"),
        (f"{HERE}:nothing", "has no attribute 'nothing'"),
        (f"{HERE}:HERE", "cannot be called"),
    ],
)
def test_what_cannot_be_used_says_why(plugins: None, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(TRANSPORTS, name)


def test_two_packages_with_the_same_name_are_an_error(plugins: None, tmp_path: Path) -> None:
    write_metadata(tmp_path, "volley_others", "3", {"volley.transports": {"twin": f"{HERE}:make_nothing"}})
    write_metadata(tmp_path, "volley_same", "4", {"volley.transports": {"twin": f"{HERE}:make_nothing"}})
    with pytest.raises(ConfigError, match=r"volley_others 3.*volley_same 4"):
        load(TRANSPORTS, "twin")


def test_an_unknown_name_lists_what_is_installed(plugins: None) -> None:
    with pytest.raises(ConfigError, match=r"local, flight, spark, broken .*, quick \(volley_things 1.2\)"):
        Config.read({"spark.volley.transport": "pigeon"})
    with pytest.raises(ConfigError, match=r"memory, service, shelf \(volley_things 1.2\)"):
        Config.read({"spark.volley.shuffle.store": "pigeon"})


@pytest.mark.parametrize("text", ["shelf", "shelf://left/top", f"{HERE}:make_nothing", "file:///data"])
def test_values_that_name_a_store(plugins: None, text: str) -> None:
    assert Config.read({"spark.volley.shuffle.store": text}).shuffle_store == text


def test_plugins_have_options_of_their_own() -> None:
    settings = {"spark.volley.plugin.shelf.height": "3", "spark.volley.plugin.a": "b"}
    assert Config.read(settings).plugin == (("a", "b"), ("shelf.height", "3"))


def test_the_doctor_lists_them(plugins: None) -> None:
    finding = check_plugins()
    assert finding.status == "warning"
    assert "transports: local, flight, spark, broken (volley_things 1.2)" in finding.found
    assert "data sources: plugin_numbers (volley_things 1.2)" in finding.found
    assert "implements version 99" in finding.found


def test_enable_refuses_a_plugin_that_cannot_be_loaded(spark: SparkSession, plugins: None) -> None:
    for key, value in {
        "spark.volley.transport": "broken",
        "spark.volley.shuffle.store": "volley_no_such_module:make",
    }.items():
        with conf(spark, {key: value}), pytest.raises(ConfigError, match="volley_no_such_module"):
            volley.enable(spark)


def test_a_session_knows_the_sources_of_installed_packages(spark: SparkSession, plugins: None) -> None:
    session = spark.newSession()
    known = session._jsparkSession.sessionState().dataSourceManager().dataSourceExists
    assert not known("plugin_numbers")
    volley.enable(session)
    assert known("plugin_numbers")


@pytest.mark.slow
def test_a_session_reads_the_sources_of_installed_packages(spark: SparkSession, plugins: None) -> None:
    session = volley.enable(spark.newSession())
    numbers = session.read.format("plugin_numbers").option("splits", "3").option("rows", "5").load()
    assert numbers.count() == 15
    report = volley.last_query(session)
    assert report is not None
    assert report.engine == "native"
