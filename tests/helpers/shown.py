# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pyspark.sql import DataFrame


def shown(frame: DataFrame, *arguments: Any, **options: Any) -> str:
    """What `show` prints."""
    with redirect_stdout(StringIO()) as output:
        frame.show(*arguments, **options)
    return output.getvalue()
