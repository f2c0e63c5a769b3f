"""Downloads and checks the files of the data sets. No torch."""

from dlgs_bench.errors import Ended


class DataError(Ended):
    """A file of a data set is missing or invalid. The message is one line."""
