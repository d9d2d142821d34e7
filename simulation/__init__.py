"""The whole network in one deterministic run: real parties, virtual time, drawn faults, a judging model."""
