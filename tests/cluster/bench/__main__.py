"""The command line of the bench."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.cluster.bench import cluster as clusters
from tests.cluster.bench import images, tools
from tests.cluster.bench.layout import BenchError, Cluster
from tests.cluster.bench.node import Node
from tests.cluster.bench.process import interruptible


def main(argv: list[str] | None = None) -> int:
    """Run one command; 1 if the bench cannot do it."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.cluster.bench", description=__doc__)
    parser.add_argument("--name", default=os.environ.get("ELASTRAIN_CLUSTER", "default"), help="name of the cluster")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--fast", action="store_true", help="notice lost nodes in seconds")
    commands.add_parser("down", help="remove the cluster and everything of it")
    commands.add_parser("tools", help="build the programs and print their folder")
    commands.add_parser("images", help="build the images")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    shell = commands.add_parser("shell", help="run a command in the cluster's network")
    shell.add_argument("argv", nargs=argparse.REMAINDER)
    node = commands.add_parser("node", help="make a node fail, or run a command on it")
    node.add_argument("what", choices=["stop", "resume", "crash", "boot", "cut", "join", "exec"])
    node.add_argument("node")
    node.add_argument("argv", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    try:
        with interruptible():
            return _run(arguments, Cluster(arguments.name))
    except BenchError as error:
        print(f"bench: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, cluster: Cluster) -> int:
    match arguments.command:
        case "up":
            clusters.up(cluster, arguments.nodes, arguments.fast)
        case "down":
            clusters.down(cluster)
        case "tools":
            print(tools.folder())
        case "images":
            print(images.store())
        case "kubeconfig":
            print(cluster.kubeconfig)
        case "shell":
            words = [word for word in arguments.argv if word != "--"] or [os.environ.get("SHELL", "/bin/sh")]
            return clusters.shell(cluster, words)
        case "node":
            node = Node(cluster, arguments.node)
            if arguments.what == "exec":
                return subprocess.call([*node.inside, *arguments.argv])
            if arguments.what == "boot":
                node.boot(tools.folder())
            else:
                getattr(node, arguments.what)()
    return 0


sys.exit(main())
