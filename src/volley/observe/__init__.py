# SPDX-License-Identifier: Apache-2.0
"""Shows what queries did: reports, explain, progress, history, dashboard, metrics and spans.

Events and decisions enter; text, plain data and pages leave. Nothing here changes what a query does, and no failure
here fails a query.
"""
