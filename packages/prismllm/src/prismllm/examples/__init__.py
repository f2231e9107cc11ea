"""Training scripts to rehearse: ordinary PyTorch, they know nothing of this package."""
