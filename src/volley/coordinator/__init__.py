# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a query: schedules tasks, retries them, and streams the result to the client.

A stage graph and a transport enter; result batches, or a manifest of materialized blocks, and events leave. It must
never depend on a concrete transport or shuffle store, and it reads no exchanged data except the results of scalar
subqueries.
"""
