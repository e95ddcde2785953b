# SPDX-License-Identifier: Apache-2.0
"""The wire protocol between Volley processes: messages, codec, handshake, client and server base classes.

Plain messages enter and leave. Failures on either side become errors with a code; tracebacks are never sent. This
package defines what can be said, not what happens next: it must never import a worker, a store or a transport.
"""
