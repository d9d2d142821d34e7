"""`blindpost demo`."""


def demo() -> None:
    """x"""
