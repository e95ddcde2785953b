# SPDX-License-Identifier: Apache-2.0
"""`volley sql`: statements from the command line, from files and from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from volley.cli.main import cli
from volley.cli.sql_shell import completions, interact
from volley.cli.sql_statements import is_complete, split_statements


def test_statements_are_split_at_semicolons_that_end_them() -> None:
    text = "select ';', \"a;b\" as `c;d`; -- one; two\n/* ; */ select 'it''s \\'; ;'; ; -- end"
    assert split_statements(text) == [
        "select ';', \"a;b\" as `c;d`",
        "-- one; two\n/* ; */ select 'it''s \\'; ;'",
    ]


@pytest.mark.parametrize(
    ("text", "complete"),
    [("select 1", False), ("select 1;", True), ("select ';'", False), ("select 1; -- so", True), ("", False)],
)
def test_a_statement_is_complete_at_its_semicolon(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.usefixtures("shared_spark")
def test_rows_are_printed_and_the_engine_is_named(tmp_path: Path) -> None:
    file = tmp_path / "report.sql"
    file.write_text(
        "select id, id * 2 as twice from range(3) order by id;\nselect input_file_block_start() < 2 as below;"
    )
    result = CliRunner().invoke(cli, ["sql", "--format", "csv", "-f", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout == "id,twice\n0,0\n1,2\n2,4\nbelow\nTrue\n"
    first, second = result.stderr.strip().splitlines()
    assert first.endswith(" s, native")
    assert " s, spark: [" in second


@pytest.mark.usefixtures("shared_spark")
def test_formats(spark: SparkSession) -> None:
    text = "select 1 as n, cast(null as string) as s, array(1, 2) as a"
    table = CliRunner().invoke(cli, ["sql", "-e", text]).stdout
    assert table.splitlines()[3] == "|1  |NULL|[1, 2]|"
    (line,) = CliRunner().invoke(cli, ["sql", "--format", "json", "-e", text]).stdout.splitlines()
    assert json.loads(line) == {"n": 1, "s": None, "a": [1, 2]}


@pytest.mark.usefixtures("shared_spark")
def test_a_failed_statement_ends_the_run() -> None:
    result = CliRunner().invoke(cli, ["sql", "-e", "select nothing_there; select 1"])
    assert result.exit_code == 1
    assert "UNRESOLVED_COLUMN" in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("shared_spark")
def test_standard_input_is_read() -> None:
    result = CliRunner().invoke(cli, ["sql", "--format", "csv"], input="select 7 as n;")
    assert result.stdout == "n\n7\n"


def test_names_are_completed(spark: SparkSession) -> None:
    spark.sql("select 1 as quantity").createOrReplaceTempView("quarters")
    assert {"SELECT", "quarters", "quantity"} <= set(completions(spark))


def test_the_shell_runs_statements_and_keeps_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toolkit = pytest.importorskip("prompt_toolkit.application")
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with create_pipe_input() as keys, toolkit.create_app_session(input=keys, output=DummyOutput()):
        end = "\x04"
        keys.send_text(f"select id\rfrom range(2) order by id;\rselect nothing_there;\r{end}")
        interact(spark, "csv")
    said = capsys.readouterr()
    assert said.out == "id\n0\n1\n"
    assert " s, native\n" in said.err
    assert "\nerror: [UNRESOLVED_COLUMN" in said.err
    (kept,) = tmp_path.rglob("sql_history")
    lines = [line for line in kept.read_text().splitlines() if line.startswith("+")]
    assert lines == ["+select id", "+from range(2) order by id;", "+select nothing_there;"]
