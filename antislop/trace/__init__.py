"""What happened during a generation: events, and reports, streams and pictures made from them. No torch."""
