# SPDX-License-Identifier: Apache-2.0
"""Makes docs/images/dashboard.png: a TPC-H query on three in-process workers, as the dashboard shows it.

    python scripts/dashboard_screenshot.py

Needs the extra `dev`, and Chromium with its driver.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from selenium import webdriver

import volley
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.bench.queries import query_text
from volley.testing.limits import DISTRIBUTED_SETTINGS

TARGET = Path(__file__).parents[1] / "docs" / "images" / "dashboard.png"


def main() -> None:
    builder = SparkSession.builder.master("local[2]").appName("orders report")
    settings = DISTRIBUTED_SETTINGS | {
        "spark.volley.history.dir": tempfile.mkdtemp(),
        "spark.volley.local.workers": "3",
        "spark.ui.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    volley.enable(spark)
    register_tables(spark, tpch_data(0.1))
    spark.sparkContext.setJobDescription("Revenue by nation, TPC-H query 5")
    for _ in range(2):
        spark.sql(query_text("q05")).collect()
    query = volley.history(spark)[0].query
    dashboard = volley.dashboard(spark)
    options = webdriver.ChromeOptions()
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1180,1500",
    ):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver") or "")
    )
    driver.get(f"{dashboard.url}#/query/{query}")
    while not driver.execute_script("return document.querySelectorAll('.timeline .task').length"):
        time.sleep(0.1)
    # The lower part of a long plan says no more than its top.
    driver.execute_script("document.querySelector('.plan').parentElement.style.maxHeight = '360px'")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(TARGET))
    driver.quit()
    dashboard.close()
    spark.stop()


if __name__ == "__main__":
    main()
