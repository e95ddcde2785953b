# SPDX-License-Identifier: Apache-2.0
"""Spark Connect sessions whose server runs in this process, behind PySpark's own gateway to the JVM.

A session or a DataFrame of Connect enters, the classic one that the server holds for it leaves: the same session in the
same JVM, so settings, views and tables are shared. It must never run anything, and needs no gRPC call of its own.
"""
