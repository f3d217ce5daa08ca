"""Internal: jobs that make a record for each prompt, and the place of their model."""
