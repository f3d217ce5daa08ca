"""Real vLLM: `make test-engines`."""
