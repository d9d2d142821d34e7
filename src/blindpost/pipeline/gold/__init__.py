"""The tables that people read, one folder each: schema, function, rules."""
