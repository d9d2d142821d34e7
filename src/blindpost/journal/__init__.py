"""What servers and canaries record for the pipeline: one schema, three tiers, sealed files."""
