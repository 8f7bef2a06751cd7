"""A real Kubernetes cluster on one machine, from package registries alone.

Every node has its own network, mount, process, host name and cgroup namespaces; the control plane and the bridge
live in a network namespace of the cluster's own, so the machine's network is left as it was. Standard library
only: it runs before anything is installed. `python3 -m tests.cluster.bench --help` tells the commands.
"""
