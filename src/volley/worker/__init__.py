# SPDX-License-Identifier: Apache-2.0
"""Runs tasks: a fragment of a plan enters, its rows leave through a sink or to the client.

A worker needs no JVM. It sees a store to write to and read from, and never another worker or the coordinator.
"""
