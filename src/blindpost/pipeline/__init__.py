"""PySpark jobs over what the servers recorded: audit, service levels, funnels, statistics, report."""
