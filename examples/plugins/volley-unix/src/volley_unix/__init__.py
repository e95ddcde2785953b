# SPDX-License-Identifier: Apache-2.0
"""A transport for Volley over asyncio streams on Unix domain sockets."""
