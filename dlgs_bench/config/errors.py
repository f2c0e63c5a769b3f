"""The mistakes of a configuration."""


class ConfigError(Exception):
    """A mistake in a configuration; the message is one line for a person, whatever the configuration holds."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))
