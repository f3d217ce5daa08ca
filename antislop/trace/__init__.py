"""The events of a generation, and reports, streams and pictures made from them. No torch."""
