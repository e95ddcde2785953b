# SPDX-License-Identifier: Apache-2.0
"""DuckDB with an extension from PyPI."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from volley.bench.data import GenerationFailed

HINT = "Run: pip install 'volley-spark[bench]'"


def connect(extension: str) -> Any:
    """A connection that has loaded the extension. Raises GenerationFailed if it is missing or for another DuckDB."""
    try:
        import duckdb

        package = Path(str(import_module(f"duckdb_extension_{extension}").__file__)).parent
    except ImportError:
        raise GenerationFailed(f"DuckDB's extension {extension} is not installed.", hint=HINT) from None
    file = package / "extensions" / f"v{duckdb.__version__}" / f"{extension}.duckdb_extension"
    if not file.exists():
        raise GenerationFailed(
            f"duckdb-extension-{extension} is not for DuckDB {duckdb.__version__}.", hint=HINT
        )
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"load '{file}'")
    return connection
