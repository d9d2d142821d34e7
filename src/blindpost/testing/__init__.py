"""Public helpers for tests: a virtual clock, a memory network with faults, builders."""
