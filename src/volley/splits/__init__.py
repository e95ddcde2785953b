"""What leaf tasks read, found by the coordinator and fed to them in units.

A source enters; units of work, as opaque bytes, leave for the tasks that pull or are dealt them. Only the source and
its reader know what a unit means; nothing here knows of plans or of transports.
"""
