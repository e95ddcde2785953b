# SPDX-License-Identifier: Apache-2.0
"""The command `volley`.

Arguments enter; text for people or JSON for programs, and an exit status, leave. A command only calls other packages,
and is imported when it is used, so that help is instant.
"""
