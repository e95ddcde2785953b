# SPDX-License-Identifier: Apache-2.0
"""No module outside `deployment/` knows which transport a session uses."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import volley

ROOT = Path(volley.__file__).parent
CLASSES = {"LocalTransport", "FlightTransport", "SparkTransport"}
DEPLOYMENTS = {"LocalDeployment", "FlightDeployment", "SparkDeployment"}


def asks_which_transport(source: str) -> bool:
    """Whether code reads the option `transport` of a configuration, or asks for the class of a transport."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(
                value=ast.Name("config") | ast.Attribute(attr="config" | "_config"), attr="transport"
            ):
                return True
            case ast.Call(func=ast.Name("isinstance"), args=[_, kind]):
                names = {part.id for part in ast.walk(kind) if isinstance(part, ast.Name)}
                if names & (CLASSES | DEPLOYMENTS):
                    return True
            case ast.Constant(value=str(text)) if text == "spark.volley.transport":
                return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        "if config.transport == 'local': pass",
        "match self._config.transport:\n  case 'spark': pass",
        "assert isinstance(transport, FlightTransport | SparkTransport)",
        "spark.conf.get('spark.volley.transport')",
    ],
)
def test_the_check_sees_who_asks(source: str) -> None:
    assert asks_which_transport(source)


def test_only_deployments_ask_which_transport_it_is() -> None:
    # Who starts a cluster or measures one sets the option; the life of a query does not read it.
    starters = ("bench", "cli", "testing", "cluster.py")
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if asks_which_transport(path.read_text()) and not str(path.relative_to(ROOT)).startswith(starters)
    }
    assert found == {"deployment/factory.py", "deployment/option_scopes.py"}


def test_only_deployments_make_transports() -> None:
    def makes(source: str) -> bool:
        calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        return any(isinstance(call, ast.Name) and call.id in CLASSES for call in calls)

    makers = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if makes(path.read_text())}
    makers = {maker for maker in makers if not maker.startswith(("bench", "testing"))}
    assert makers == {f"deployment/{name}.py" for name in ("local", "flight", "spark")}
