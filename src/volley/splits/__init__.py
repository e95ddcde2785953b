# SPDX-License-Identifier: Apache-2.0
"""What leaf tasks read, found by the coordinator and fed to them in splits.

A source enters; splits of work, as opaque bytes, leave for the tasks that pull or are dealt them. Only the source and
its reader know what a split means; nothing here knows of plans or of transports.
"""
