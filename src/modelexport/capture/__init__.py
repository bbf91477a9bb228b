"""From a PyTorch model to a graph and the evidence of who ran each of its nodes. Needs torch."""
