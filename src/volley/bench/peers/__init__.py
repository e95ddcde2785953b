# SPDX-License-Identifier: Apache-2.0
"""Other engines in the same benchmark: each in a process and, if it is not part of Volley, an environment of its own.

Query texts and the folders of tables enter; runs with seconds, processor time, peak memory and rows leave. An engine
that cannot be installed, or a query that it cannot run, is reported by name. The caller's session is never touched.
"""
