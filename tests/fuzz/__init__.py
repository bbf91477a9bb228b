"""Untrusted files: valid exports, damaged in ten thousand ways, given to every reader under watch."""
