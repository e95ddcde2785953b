# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a query and streams its result.

A graph of stages and a transport enter; batches for the client and events leave. It decides who runs what, which
attempt counts and when to stop; it never touches exchanged data and knows no concrete transport or store.
"""
