"""Checks a configuration and expands it to runs."""
