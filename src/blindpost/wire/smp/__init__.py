"""SMP: commands, responses and errors of the simplex messaging protocol, versions 6 to 20."""
