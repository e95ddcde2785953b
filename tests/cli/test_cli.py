# SPDX-License-Identifier: Apache-2.0
"""The command line, through its front door."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from volley.cli.checks import CHECKS, Finding, check_java, check_memory, check_packages
from volley.cli.main import cli
from volley.errors import ConfigError
from volley.options import OPTIONS


def run(*arguments: str, timeout_seconds: int = 240) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: it starts a Spark session, and one process has one."""
    return subprocess.run(
        [sys.executable, "-m", "volley.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [[], ["bench"], ["bench", "tpch"], ["bench", "shuffle"], ["config"], ["demo"], ["doctor"]],
    ids=" ".join,
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert "volley " in result.output


def test_help_does_not_wait_for_spark() -> None:
    code = "import sys; from volley.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "click" in modules
    assert not {"pyspark", "datafusion", "pyarrow"} & set(modules)


class TestConfig:
    def test_json_has_every_option(self) -> None:
        result = CliRunner().invoke(cli, ["config", "--json"])
        listed = {row["key"]: row for row in json.loads(result.output)}
        assert set(listed) == {option.key for option in OPTIONS}
        assert listed["spark.volley.local.workers"]["default"] == "1"

    def test_text_has_every_option(self) -> None:
        result = CliRunner().invoke(cli, ["config"], env={"COLUMNS": "200"})
        assert all(option.key in result.output for option in OPTIONS)


class TestBench:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--engines", "volley,presto"], "expected all, or some of volley, spark, datafusion"),
            (["--scale", "0"], "--scale"),
            (["--set", "shuffle=1"], "spark.key=value"),
            (["--runs", "0"], "--runs"),
            (["--engines", "spark", "--check"], "nothing to compare"),
        ],
    )
    def test_a_bad_option_is_refused(self, arguments: list[str], says: str) -> None:
        result = CliRunner().invoke(cli, ["bench", "tpch", *arguments])
        assert result.exit_code == 2
        assert says in result.output

    def test_an_unknown_query_is_one_line_not_a_traceback(self) -> None:
        result = run("bench", "tpch", "--queries", "q99")
        assert result.returncode == 2
        assert result.stderr.startswith("[INVALID_OPTION]")
        assert "Traceback" not in result.stderr

    @pytest.mark.usefixtures("shared_spark")
    def test_it_runs_and_writes_json(self, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        options = ["--scale", "0.01", "--queries", "q06,q03", "--runs", "1", "--check", "--json", str(file)]
        options += ["--set", "spark.volley.local.workers=2", "--master", "local[2]"]
        result = CliRunner().invoke(cli, ["bench", "tpch", *options])
        assert result.exit_code == 0, result.output
        assert "geometric mean" in result.output
        written = json.loads(file.read_text())
        assert written["scale"] == 0.01
        assert written["environment"]["settings"] == {"spark.volley.local.workers": "2"}
        ours = [record for record in written["results"] if record["engine"] == "volley"]
        assert [(r["query"], r["native"], r["spark_tasks"], r["rows_match"]) for r in ours] == [
            ("q06", True, 0, True),
            ("q03", True, 0, True),
        ]


class TestDoctor:
    @pytest.mark.usefixtures("shared_spark")
    def test_this_machine_is_fit(self) -> None:
        result = CliRunner().invoke(cli, ["doctor", "--json"])
        findings = json.loads(result.stdout)
        assert result.exit_code == 0, findings
        assert [finding["name"] for finding in findings] == [check.name for check in CHECKS]
        assert {finding["status"] for finding in findings} <= {"ok", "warning"}

    def test_no_java_is_an_error_with_a_remedy(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert check_java().status == "error"
        assert "openjdk-17-jre-headless" in check_java().remedy

    @pytest.mark.parametrize(
        ("banner", "status"),
        [
            ('openjdk version "1.8.0_402"', "error"),
            ('openjdk version "11.0.22" 2024-01-16', "error"),
            ('openjdk version "17.0.15" 2025-04-15', "ok"),
            ('openjdk version "25-ea"', "ok"),
        ],
    )
    def test_java_is_judged_by_its_version(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, banner: str, status: str
    ) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert check_java().status == status

    def test_a_version_outside_the_tested_range_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from importlib import metadata

        real = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "99.0" if name == "datafusion" else real(name))
        finding = check_packages()
        assert finding.status == "error"
        assert "datafusion 99.0 is outside" in finding.found

    def test_little_memory_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("volley.cli.checks.available_memory_bytes", lambda: 2 << 30)
        assert check_memory().status == "warning"

    def test_what_is_wrong_makes_the_command_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from volley.cli import checks, doctor

        bad = checks.Check("java", "Java", lambda: Finding("java", "error", "none", "Install it."))
        after = checks.Check("query", "Query", lambda: pytest.fail("not to be tried"), needs=("java",))
        monkeypatch.setattr(doctor, "CHECKS", (bad, after))
        result = CliRunner().invoke(cli, ["doctor"])
        assert result.exit_code == 1
        assert "Install it." in result.output
        assert "skipped because of: java" in result.output


class TestDemo:
    def test_without_java_it_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        result = CliRunner().invoke(cli, ["demo"])
        assert isinstance(result.exception, ConfigError)
        assert "openjdk-17-jre-headless" in str(result.exception)
        assert "volley doctor" in str(result.exception)

    @pytest.mark.usefixtures("shared_spark")
    def test_it_prints_results_seconds_and_an_explanation(self) -> None:
        result = CliRunner().invoke(cli, ["demo", "--scale", "0.01"])
        assert result.exit_code == 0, result.output
        assert "Revenue by region and year" in result.output
        assert "same as Spark's" in result.output
        assert "not native" not in result.output
