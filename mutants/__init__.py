"""A gate for tests: break decision code by the dozen and see whether a test notices."""
