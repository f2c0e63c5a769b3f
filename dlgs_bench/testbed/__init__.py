"""Hosts in network namespaces, with links of a given rate and latency."""
