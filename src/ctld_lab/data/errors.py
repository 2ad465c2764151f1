"""The one error of this package."""


class DataError(Exception):
    """Data that are missing, broken or not what they should be; the message names the file and the remedy."""
