"""The world of strings: requests, tokenizer, chat template, detokenizer, stop strings."""
