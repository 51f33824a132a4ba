"""Fakes, tiny models and harnesses for tests. Nobody else imports this."""
