# SPDX-License-Identifier: Apache-2.0
"""Dates, times and time zones as Spark understands them, computed over whole columns.

Columns of texts or of microseconds enter, the other kind leaves. Nothing here knows plans, files or the engine.
"""
