"""LLM serving workloads, per client."""
