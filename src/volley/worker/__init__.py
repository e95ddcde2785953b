# SPDX-License-Identifier: Apache-2.0
"""Runs tasks on DataFusion, in this process or as a worker daemon.

Task specs and splits enter; rows leave through a shuffle sink, as written files or as a stream to the client. A worker
needs no JVM and makes no scheduling decisions: it must never import the coordinator or a transport, and it reaches
other workers only through its shuffle store.
"""
