# SPDX-License-Identifier: Apache-2.0
"""The example plug-ins, visible to this process and to those that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from helpers.plugin_packages import EXAMPLES, place


@pytest.fixture(scope="module")
def example_plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("site")
    for project in EXAMPLES.iterdir():
        place(project, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        inherited = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *filter(None, [inherited])]))
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("volley_unix", "volley_valkey")]:
        del sys.modules[name]
