"""What every room may use: errors, registries, configuration, the two waists. No torch."""
