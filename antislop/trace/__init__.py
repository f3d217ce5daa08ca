"""What happened while a text was written: events, reports, streams, pictures. No torch."""
