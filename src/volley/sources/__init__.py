# SPDX-License-Identifier: Apache-2.0
"""The data sources that ship with Volley: ordinary PySpark data sources whose readers also offer `discover`.

Options and a path enter; partitions and Arrow batches leave. They also run on plain Spark, so they must never need a
Volley session: of Volley they import only helpers for batches and pruning.
"""
