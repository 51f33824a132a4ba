"""Plain torch truth of every operation."""
