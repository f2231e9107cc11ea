"""A small GPT with data, pipeline and tensor parallelism, and a demonstration with it."""
