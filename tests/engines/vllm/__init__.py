"""Real vLLM: `make test-vllm`."""
