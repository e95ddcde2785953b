# SPDX-License-Identifier: Apache-2.0
"""Calls Python functions over batches, in processes that run PySpark's own worker.

In go the rows of a fragment and a `PythonProgram`; out come the rows that the functions make of them. The functions are
never unpickled here: a process of its own does that, with PySpark's converters, and its end costs only an attempt.
"""
