"""What is read off the hidden states: logits of the next token."""
