# SPDX-License-Identifier: Apache-2.0
"""Object stores: the settings of a session's file systems enter, validated objects leave.

Hadoop's settings of a file system become settings of a store, or a reason why they cannot. Workers get these settings
with a task, and open objects by the id of their store. Nothing here knows about plans, formats or the JVM.
"""
