"""Reading checkpoints: where the files are, what they say about pooling and prompts, and the weights."""
