"""A small language model trained by several workers: what the demo runs. Ordinary code that no rule knows."""
