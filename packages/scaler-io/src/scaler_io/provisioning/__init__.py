"""Worker managers: what a provider can do, and the core that keeps as many units as are wanted. Pure, no IO."""
