"""What a device can do and how much memory it has."""
