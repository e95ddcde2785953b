# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/ are well formed, and use commands and options that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from volley.cli.main import cli
from volley.options import OPTIONS

yaml: Any = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy"
YAML_RULES = "{extends: relaxed, rules: {line-length: {max: 130}, braces: disable}}"


def known_options(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None, command
    return {option for parameter in found.params for option in parameter.opts}


def check(words: list[str]) -> None:
    """Words of a command line: options exist, and so do settings."""
    known = known_options(words[0])
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    assert options
    assert set(options) <= known
    settings = re.findall(r"spark\.volley\.[\w.]+", " ".join(words))
    assert set(settings) <= {option.key for option in OPTIONS}


def test_compose() -> None:
    composition = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    ours = [
        service for name, service in composition["services"].items() if name.startswith(("worker", "shuffle"))
    ]
    assert len(ours) == 4
    for service in ours:
        check(shlex.split(service["command"]))
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][
        0
    ]
    assert {target.partition(":")[0] for target in scraped["targets"]} <= composition["services"].keys()


def test_kubernetes() -> None:
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    sets = {item["metadata"]["name"]: item for item in found if item["kind"] == "StatefulSet"}
    services = {item["metadata"]["name"]: item for item in found if item["kind"] == "Service"}
    budgets = {item["metadata"]["name"] for item in found if item["kind"] == "PodDisruptionBudget"}
    assert sets.keys() == services.keys() == budgets
    for name, item in sets.items():
        spec = item["spec"]
        assert services[spec["serviceName"]]["spec"]["clusterIP"] == "None"
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        check(container["args"])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {port["name"]: port["port"] for port in services[name]["spec"]["ports"]}
        assert f"--port={ports['flight']}" in container["args"]
        drain = next(int(word.partition("=")[2]) for word in container["args"] if word.startswith("--drain"))
        assert pod["terminationGracePeriodSeconds"] > drain
        assert pod["securityContext"]["runAsNonRoot"]


def test_dockerfile() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("USER ") and "root" not in line for line in lines)
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    (command,) = [line for line in lines if line.startswith("CMD ")]
    check(json.loads(command.removeprefix("CMD ")))


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda unit: unit.name)
def test_systemd(unit: Path) -> None:
    (start,) = re.findall(r"^ExecStart=\S+/volley (.*)$", unit.read_text(), re.MULTILINE)
    check(shlex.split(start))
    if analyze := shutil.which("systemd-analyze"):
        said = subprocess.run(
            [analyze, "verify", str(unit)], capture_output=True, text=True, check=False
        ).stderr
        # The program itself is not installed here.
        assert not [line for line in said.splitlines() if unit.name in line and "not executable" not in line]


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "--no-color", "deploy/Dockerfile"],
        ["kubernetes-validate", "--strict", "--quiet", "deploy/kubernetes.yaml"],
        ["yamllint", "--strict", "-d", YAML_RULES, "deploy", "examples/dbt", "mkdocs.yml"],
    ],
    ids=lambda command: str(command[0]),
)
def test_linters_find_nothing(command: list[str]) -> None:
    """Their own linters, which come with the extra dev."""
    program = Path(sys.executable).with_name(command[0])
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed")
    said = subprocess.run(
        [str(program), *command[1:]], cwd=DEPLOY.parent, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout.strip()) == (0, ""), said.stderr
