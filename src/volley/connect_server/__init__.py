# SPDX-License-Identifier: Apache-2.0
"""A Spark Connect server whose sessions run natively, for unmodified clients.

Requests of Connect clients enter. Queries that Volley can run leave as Arrow batches in Spark's own messages. The rest
goes to Spark's own Connect server, in the same process, and its bytes leave unchanged. This package must never change
what it passes on, nor answer a request other than for the rows of a query.

    client --gRPC--> proxy --+-- operations    a query that Volley runs, and its responses until they are released
                             |
                             +-- backend       Spark's Connect server, on loopback, behind a token of this process
"""
