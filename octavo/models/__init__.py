"""Model families as declarations. A family's file turns its config into an Architecture and names its weights."""
