"""Internal: applies bans in transformers' own continuous batching, for `applied_to` and `generate_many`."""
