"""Which tokens to compute next. No torch."""
