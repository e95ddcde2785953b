# SPDX-License-Identifier: Apache-2.0
"""Between the native side and Spark.

Native batches enter, and leave as what PySpark's callers expect: tables under Spark's column names and types.
No operator runs here.
"""
