"""An exported file against PyTorch: shares no code with what made it."""
