"""What a training step costs, from a model's config alone: its memory and its floating-point operations."""
