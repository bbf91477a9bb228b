"""Files from strangers: valid exports, broken in ten thousand ways, given to every reader under watch."""
