# SPDX-License-Identifier: Apache-2.0
"""One action, from the wrapped PySpark method to its answer and its report.

A DataFrame or a write command enters, with a function by which Spark would answer. Rows leave, natively or from that
function. Nothing here knows which method of PySpark was called: that is the task of `session`.
"""
