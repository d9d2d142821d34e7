"""What the SimpleX app says inside agent messages: bytes to frozen values and back. Pure, like the wire."""
