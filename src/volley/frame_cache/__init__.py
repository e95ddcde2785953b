# SPDX-License-Identifier: Apache-2.0
"""The rows of cached frames, as Arrow, in the driver's process.

Rows enter when a query first reads a frame that Spark's cache manager lists, and leave when it no longer does. This
package only keeps rows: it never decides what is cached, and never computes anything.
"""
