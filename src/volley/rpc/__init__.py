# SPDX-License-Identifier: Apache-2.0
"""How processes of Volley talk: messages, the codec that checks them, the handshake, one client and one server base.

Plain messages enter and leave; whatever goes wrong on either side becomes a coded error, and no traceback travels. This
package knows what may be said, never what is done about it: it must not import a worker, a store or a transport.
"""
