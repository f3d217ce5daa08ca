"""Internal: bans inside transformers' own continuous batching, which `applied_to` reaches."""
