"""The one error that malformed bytes or text can cause on the ground floor."""


class WireError(ValueError):
    """These bytes are not a value of the expected type. The message says what was expected."""
