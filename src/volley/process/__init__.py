# SPDX-License-Identifier: Apache-2.0
"""What every Volley process has, driver or daemon: its machine, event loop, shared resources, logs, spans and metrics.

Nothing here knows about queries, plans or peers. What a process shares is closed in order at exit (`runtime`).
"""
