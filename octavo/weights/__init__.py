"""Reading weights: hub, safetensors, GGUF, dummy."""
