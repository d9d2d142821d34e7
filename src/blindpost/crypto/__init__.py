"""One small module per cryptographic job. No protocol decisions and no storage."""
