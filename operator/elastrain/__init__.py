"""elastrain: elastic PyTorch training on Kubernetes, and the command line for it."""
