"""The mistakes of a configuration."""


class ConfigError(Exception):
    """A mistake in a configuration; the message is one line for a person."""
