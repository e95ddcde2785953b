# SPDX-License-Identifier: Apache-2.0
"""Where exchanged data lives between the task that wrote it and those that read it.

Batches of one attempt enter, by partition; after its commit they can be read by whoever holds the block's name. A store
knows nothing of plans, tasks or who won: it never decides which attempt counts.
"""
