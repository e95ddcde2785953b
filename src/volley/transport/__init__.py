# SPDX-License-Identifier: Apache-2.0
"""How the coordinator reaches its workers: in this process, over Arrow Flight, or inside Spark's executors.

Task specs enter; task outcomes, split requests, blocks and result batches leave. A transport delivers plans without
looking into them: it must never decide what a task reads or whether it is retried.
"""
