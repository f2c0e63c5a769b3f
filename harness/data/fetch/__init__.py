"""Where the files of the data sets come from, and what they must be. No torch."""
