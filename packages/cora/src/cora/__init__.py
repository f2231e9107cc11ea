"""cora."""
