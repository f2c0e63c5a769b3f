"""Starts and supervises processes: on this machine, on other hosts, on a testbed."""
