"""The tables that people read, one module each: schema, function, rules."""
