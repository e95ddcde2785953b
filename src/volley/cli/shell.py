# SPDX-License-Identifier: Apache-2.0
"""`volley shell`: an interactive PySpark session with Volley enabled."""

from __future__ import annotations

import code
import importlib

import click

from volley.cli.console import parse_settings
from volley.cli.run import submit


@click.command()
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the session. Repeatable."
)
def shell(master: str, settings: tuple[str, ...]) -> None:
    """Start Python, or IPython if it is installed, with `spark`, `F` and `volley`, and Volley enabled.

    Example: volley shell --conf spark.volley.fallback=warn
    """
    submit(parse_settings(settings) | {"spark.master": master})
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import volley

    spark = volley.enable(SparkSession.builder.appName("volley shell").getOrCreate())
    names = {"spark": spark, "F": F, "volley": volley}
    try:
        ipython = importlib.import_module("IPython")
    except ImportError:
        code.interact(
            banner="spark, F and volley are here; volley.explain(df) explains", local=names, exitmsg=""
        )
    else:
        ipython.start_ipython(argv=["--no-banner", "--ext", "volley"], user_ns=names)
    finally:
        spark.stop()
