# SPDX-License-Identifier: Apache-2.0
"""The releases of Spark that Volley is tested with, and how they differ where Volley depends on it.

A version of PySpark enters, a `SparkVersion` leaves: plain values that the plan reader, the bridge and the seam ask
instead of comparing versions themselves. No other package may compare versions of Spark.
"""
