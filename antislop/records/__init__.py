"""Files of records in, journals out. No torch."""
