# SPDX-License-Identifier: Apache-2.0
"""A nightly job as many are: read CSV, clean it, join, rank with a window, call a Python function, write Parquet.

A plain PySpark program, which knows nothing of Volley: engines that speak PySpark run it as it is.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

ORDERS = (
    "order_id bigint, customer_id bigint, product string, quantity string, price string, ordered_at string"
)
CUSTOMERS = "customer_id bigint, email string, country string"


def run(spark: SparkSession, data: str, target: str) -> DataFrame:
    """Write the three largest orders of each customer to `target`, and return what the report of the job shows."""
    orders = clean_orders(spark.read.csv(f"{data}/orders", schema=ORDERS, header=True))
    customers = spark.read.csv(f"{data}/customers", schema=CUSTOMERS, header=True)
    domain = F.udf(mail_domain, "string")
    of_customer = Window.partitionBy("customer_id").orderBy(F.col("amount").desc(), "order_id")
    ranked = (
        orders.join(customers.dropDuplicates(["customer_id"]), "customer_id")
        .withColumn("place", F.row_number().over(of_customer))
        .where("place <= 3")
        .withColumn("domain", domain("email"))
    )
    ranked.write.mode("overwrite").parquet(target)
    written = spark.read.parquet(target)
    return (
        written.groupBy("country", "domain")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"), F.max("ordered_on").alias("last"))
        .orderBy("country", "domain")
    )


def clean_orders(orders: DataFrame) -> DataFrame:
    """Rows that are complete, each order once, with numbers and dates in place of text."""
    return (
        orders.where("quantity rlike '^[0-9]+$' and price rlike '^[0-9]+([.][0-9]+)?$'")
        .withColumn("product", F.lower(F.trim("product")))
        .withColumn(
            "amount",
            (F.col("quantity").cast("int") * F.col("price").cast("decimal(10,2)")).cast("decimal(18,2)"),
        )
        .withColumn("ordered_on", F.to_date("ordered_at"))
        .where("product <> '' and ordered_on is not null")
        .dropDuplicates(["order_id"])
        .select("order_id", "customer_id", "product", "amount", "ordered_on")
    )


def mail_domain(address: str | None) -> str:
    """What stands behind the @, without subdomains."""
    host = (address or "").rpartition("@")[2].strip().lower()
    return ".".join(host.split(".")[-2:])
