# SPDX-License-Identifier: Apache-2.0
"""What Volley would do for jobs that never ran it: Spark's event logs in, a forecast out.

It reads files and needs neither Java nor a session. It never runs a query.
"""
