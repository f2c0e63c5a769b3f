"""Errors in a configuration."""


class ConfigError(Exception):
    """An error in a configuration. Its message is always one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
