"""Load generators and reports."""
