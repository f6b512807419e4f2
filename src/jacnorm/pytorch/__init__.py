"""What tames PyTorch: precision, tracing, settings that all threads share, modules behind a model."""
