"""Where the files of the data sets come from, and what they must be. No torch."""

from dlgs_bench.errors import Ended


class DataError(Ended):
    """The data are not what they should be; the message is one line for a person."""
