"""Messages both ways: stored, sealed, delivered; opened, checked, acknowledged."""
