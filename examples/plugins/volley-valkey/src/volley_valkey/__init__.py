# SPDX-License-Identifier: Apache-2.0
"""A shuffle store for Volley on a Valkey or Redis server."""
