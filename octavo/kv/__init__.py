"""KV blocks as numbers: pool, prefix index, transactions. No torch."""
