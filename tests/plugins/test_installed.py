# SPDX-License-Identifier: Apache-2.0
"""The example packages as pip installs them, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import volley
from helpers.plugin_packages import EXAMPLES

_LOAD = """
import json, sys
from volley.plugins import STORES, TRANSPORTS, installed, load
found = [(kind.group, plugin) for kind in (TRANSPORTS, STORES) for plugin in installed(kind)]
loaded = [load(kind, plugin.name) for kind in (TRANSPORTS, STORES) for plugin in installed(kind)]
files = [sys.modules[factory.__module__].__file__ for factory in loaded]
print(json.dumps([[group, plugin.name, plugin.package] for group, plugin in found] + [files]))
"""


@pytest.mark.slow
def test_pip_installs_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    (site,) = tmp_path.glob("lib/python*/site-packages")
    # Volley and what it needs are those of the tests.
    paths = [Path(volley.__file__).parents[1], Path(sysconfig.get_path("purelib"))]
    (site / "tests.pth").write_text("".join(f"{path}\n" for path in paths))
    packages = [str(project) for project in sorted(EXAMPLES.iterdir())]
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *packages]
    subprocess.run(install, check=True)
    said = subprocess.run([python, "-c", _LOAD], capture_output=True, text=True, check=True).stdout
    *plugins, files = json.loads(said)
    assert plugins == [
        ["volley.transports", "unix", "volley-unix 0.1.0"],
        ["volley.shuffle_stores", "valkey", "volley-valkey 0.1.0"],
    ]
    assert all(Path(file).is_relative_to(site) for file in files)
