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
# Templates are no YAML before they are rendered.
YAML_RULES = (
    "{extends: relaxed, ignore: [deploy/helm/volley/templates], "
    "rules: {line-length: {max: 130}, braces: disable}}"
)


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
    assert len(check_manifests(DEPLOY / "kubernetes.yaml")) == 6


def check_manifests(path: Path) -> list[dict[str, Any]]:
    """Stateful sets, with services and disruption budgets of the same names, whose commands exist."""
    found = [item for item in yaml.safe_load_all(path.read_text()) if item]
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
        # Daemons connect to each other, by names that no public authority signs.
        assert "--tls-ca=/tls/ca.crt" in container["args"]
        drain = next(int(word.partition("=")[2]) for word in container["args"] if word.startswith("--drain"))
        assert pod["terminationGracePeriodSeconds"] > drain
        assert pod["securityContext"]["runAsNonRoot"]
    return found


class Chart:
    """What Helm makes of the templates of a chart that uses values, conditions, counted loops and its own templates.

    The command `helm` is not on a package index, so this part of its language is read here. Anything else fails.
    """

    def __init__(self, values: dict[str, Any], templates: Path) -> None:
        self._root = {"Values": values, "Release": {"Name": "mine"}}
        self._named: dict[str, str] = {}
        for path in sorted(templates.glob("*.tpl")):
            for name, body in re.findall(
                r'\{\{- define "([\w.]+)" -\}\}\n(.*?)\n\{\{- end -\}\}', path.read_text(), re.DOTALL
            ):
                self._named[name] = body

    def render(self, text: str) -> str:
        # A dash takes the white space before it away.
        parts = re.split(r"(\s*\{\{-.*?\}\}|\{\{.*?\}\})", text)
        return self._render(parts, {})

    def _render(self, parts: list[str], variables: dict[str, Any]) -> str:
        """Take the parts up to the end of this block, and render them."""
        out = ""
        while parts:
            part = parts.pop(0)
            if not part.strip().startswith("{{"):
                out += part
                continue
            match part.strip().strip("{}").strip("- ").split():
                case ["end"]:
                    break
                case ["if", path]:
                    holds = bool(self._value(path, variables))
                    body = self._render(parts, variables)
                    out += body if holds else ""
                case ["range", variable, ":=", "until", "(int", path]:
                    here = list(parts)
                    for number in range(self._value(path.rstrip(")"), variables)):
                        parts[:] = here
                        out += self._render(parts, variables | {variable: number})
                case ["include", name, "."]:
                    out += self.render(self._named[name.strip('"')])
                case [path]:
                    out += str(self._value(path, variables))
                case words:
                    raise AssertionError(f"the chart uses {words}")
        return out

    def _value(self, path: str, variables: dict[str, Any]) -> Any:
        if path in variables:
            return variables[path]
        found: Any = self._root
        for name in path.removeprefix("$").removeprefix(".").split("."):
            found = found[name]
        return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_helm_chart(shuffle: bool, tmp_path: Path) -> None:
    chart = DEPLOY / "helm" / "volley"
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (about["apiVersion"], about["name"], about["type"]) == ("v2", "volley", "application")
    values = yaml.safe_load((chart / "values.yaml").read_text())
    values["shuffle"]["enabled"] = shuffle
    values["worker"]["pythonFunctions"] = shuffle
    templates = chart / "templates"
    rules = Chart(values, templates)
    paths = sorted(path for path in templates.iterdir() if path.suffix != ".tpl")
    made = {path.name: rules.render(path.read_text()) for path in paths}
    options = set(re.findall(r"spark\.volley\.[\w.]+", made.pop("NOTES.txt")))
    assert options <= {option.key for option in OPTIONS}
    assert ("spark.volley.shuffle.store" in options) is shuffle
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text("---\n".join(text for text in made.values() if text.strip()))
    names = {item["metadata"]["name"] for item in check_manifests(rendered)}
    assert names == ({"mine-worker", "mine-shuffle"} if shuffle else {"mine-worker"})
    assert ("--python-functions" in rendered.read_text()) is shuffle
    servers = "mine-shuffle-0.mine-shuffle:7171,mine-shuffle-1.mine-shuffle:7171"
    assert (servers in rendered.read_text()) is shuffle
    if (linter := Path(sys.executable).with_name("kubernetes-validate")).exists():
        said = subprocess.run(
            [str(linter), "--strict", "--quiet", str(rendered)], capture_output=True, text=True, check=False
        )
        assert (said.returncode, said.stdout.strip()) == (0, ""), said.stderr


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
