# SPDX-License-Identifier: Apache-2.0
"""The command `volley`.

Words from a terminal enter; text for people, or JSON for programs, and an exit status leave. A command only
arranges what other packages do, and is imported when it is called, so that help is instant.
"""
