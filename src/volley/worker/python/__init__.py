# SPDX-License-Identifier: Apache-2.0
"""Calls Python functions over batches, in processes that run PySpark's own worker.

The rows of a fragment and a `PythonProgram` enter; the rows that the functions return leave. Functions are never
unpickled in this process: a separate one does that, with PySpark's converters, and its crash costs only an attempt.
"""
