"""Connection links: full ones carry everything, short ones lead to data that a router keeps."""
