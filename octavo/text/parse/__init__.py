"""What a model's text means: thoughts, calls of tools, and the text for the user. One small file a dialect."""
