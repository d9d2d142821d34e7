"""How fast the pipeline's jobs are, beside DuckDB and Polars on the same files in the same run."""
