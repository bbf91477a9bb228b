"""Load models and choose their example inputs."""
