"""Load generators, the data they send, and reports of what they measure."""
