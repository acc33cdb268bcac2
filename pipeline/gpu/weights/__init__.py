"""A checkpoint's tensors on their way into a model."""
