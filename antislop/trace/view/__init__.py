"""Traces as text, pictures, pages and notebook outputs. Internal: `antislop.trace.Trace` has a method for each."""
