"""`make demo`: from a bare machine to a trained model, telling what happens on the way."""

from __future__ import annotations

import os
import sys

import yaml
from tests.cluster.bench.layout import REPOSITORY, BenchError
from tests.cluster.target import Target, target

NAMESPACE = "default"


def main() -> int:
    """Run the demo; 1 if the job did not complete."""
    try:
        with target(name=os.environ.get("ELASTRAIN_CLUSTER", "demo")) as cluster:
            return _train(cluster)
    except BenchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _say(line: str) -> None:
    print(f"\n$ {line}", flush=True)


def _train(cluster: Target) -> int:
    _say("helm install elastrain charts/elastrain --namespace elastrain-system --create-namespace")
    cluster.install()
    body = yaml.safe_load((REPOSITORY / "examples/language_model/trainjob.yaml").read_text())
    body["spec"]["template"]["spec"]["containers"][0]["image"] = cluster.trainer_image
    name = body["metadata"]["name"]
    cluster.kubectl("delete", "trainjob", name, "-n", NAMESPACE, "--ignore-not-found")
    _say("kubectl apply -f examples/language_model/trainjob.yaml")
    cluster.apply(NAMESPACE, body)
    _say(f"kubectl get trainjobs {name} --watch")
    phase = _follow(cluster, name)
    _say(f"kubectl logs {name}-0-0")
    print(cluster.kubectl("logs", "-n", NAMESPACE, f"{name}-0-0", "--tail=30"))
    _say(f"kubectl describe trainjob {name}")
    print(cluster.kubectl("describe", "trainjob", "-n", NAMESPACE, name))
    cluster.kubectl("delete", "trainjob", "-n", NAMESPACE, name)
    return 0 if phase == "Complete" else 1


def _follow(cluster: Target, name: str) -> str:
    """Print a row for each change until the job ends; return its phase."""
    last = ""

    def look() -> str | None:
        nonlocal last
        lines = cluster.kubectl("get", "trainjob", "-n", NAMESPACE, name).splitlines()
        row = " ".join(lines[1].split()[:-1])
        if row != last:
            print("\n".join(lines if not last else lines[1:]), flush=True)
            last = row
        phase = lines[1].split()[1] if len(lines[1].split()) > 1 else ""
        return phase if phase in ("Complete", "Failed") else None

    return cluster.eventually(look, f"{name} to end", 600)


if __name__ == "__main__":
    sys.exit(main())
