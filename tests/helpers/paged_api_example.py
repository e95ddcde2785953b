# SPDX-License-Identifier: Apache-2.0
"""Loads examples/paged_api.py, which is in no package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

EXAMPLE = Path(__file__).parents[2] / "examples" / "paged_api.py"


@contextmanager
def load_paged_api() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("paged_api", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    # Spark's own Python processes cannot import it from there.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types
    spec.loader.exec_module(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    del sys.modules[module.__name__]
