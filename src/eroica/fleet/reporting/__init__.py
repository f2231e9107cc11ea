"""The side of a job that reports to the fleet: a process of low priority beside the collector.

The run directory is the spool. What the collector has written there is packed into pieces and sent until the service
says that it keeps them; whoever is killed at whatever moment begins again with what lies on disk.
"""
