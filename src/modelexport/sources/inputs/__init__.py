"""Where example inputs come from."""
