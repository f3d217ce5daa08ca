"""From prompts to records and preference pairs."""
