"""Internal: bans inside transformers' own continuous batching, for `applied_to` and `generate_many`."""
