"""Tools for PyTorch: precision, torch.compile, settings that all threads share, the modules of a model."""
