"""How a weight matrix is stored and multiplied; one format a file."""
