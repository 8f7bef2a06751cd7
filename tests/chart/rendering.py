"""Running helm on the chart, and looking through what it renders."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.bench import tools

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "elastrain"
RELEASE, NAMESPACE = "el", "train"
KUBERNETES = "1.36.3"  # to render for; a helm that was not built by its makers takes itself for an ancient one

Manifest = dict[str, Any]

VALUES: Mapping[str, Manifest] = {
    "defaults": {},
    "namespaces": {"watchNamespaces": ["research", "production"]},
    "everything off": {
        "replicas": 1,
        "crds": {"enabled": False, "keep": False},
        "rbac": {"create": False, "aggregateRoles": False},
        "serviceAccount": {"create": False, "name": "given"},
        "networkPolicy": {"enabled": False, "jobs": False},
        "podDisruptionBudget": {"enabled": False},
        "tls": {"existingSecret": "from-cert-manager"},
    },
    "everything set": {
        "nameOverride": "trainer",
        "fullnameOverride": "a-name-that-is-so-long-that-it-has-to-be-cut-to-fit-63-chars",
        "commonLabels": {"team": "research"},
        "image": {
            "repository": "mirror/elastrain-operator",
            "digest": "sha256:" + "0123456789abcdef" * 4,
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "mirror"}],
        "replicas": 3,
        "crds": {"enabled": True, "keep": False},
        "coordinator": {"port": 443},
        "serviceAccount": {"annotations": {"example.com/role": "operator"}},
        "networkPolicy": {"apiServer": {"ports": [6443], "cidrs": ["10.0.0.1/32", "fd00::1/128"]}},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {
                "topologyKey": "rack",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
            }
        ],
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "podAnnotations": {"note": "yes"},
        "extraArgs": ["--log-level", "debug"],
        "extraEnv": [{"name": "PYTHONASYNCIODEBUG", "value": "1"}],
    },
}
"""Sets of values that everything is rendered with."""


@dataclass(frozen=True)
class Helm:
    """The helm program."""

    program: Path

    @staticmethod
    def found() -> Helm:
        """Return helm from PATH, else the one of the bench, which is built if need be."""
        return Helm(Path(shutil.which("helm") or tools.folder() / "helm"))

    def run(self, *arguments: str, values: Manifest | None = None) -> subprocess.CompletedProcess[str]:
        """Run helm with these arguments, and the values as a file if there are some."""
        extra = () if values is None else ("--values", "-")
        return subprocess.run(
            [self.program, *arguments, *extra],
            input=yaml.safe_dump(values or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    def render(self, values: Manifest, *, release: str = RELEASE, text: bool = False) -> Any:
        """Return the manifests that the chart makes of the values, or the text of them."""
        done = self.run(
            "template", release, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, values=values
        )
        assert done.returncode == 0, done.stderr
        return done.stdout if text else [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Return the manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def the(manifests: list[Manifest], kind: str) -> Manifest:
    """Return the only manifest of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield the metadata and spec of every pod and pod template."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["metadata"], manifest["spec"]
        elif "template" in manifest.get("spec", {}):
            template = manifest["spec"]["template"]
            yield template["metadata"], template["spec"]


def operator(manifests: list[Manifest]) -> Manifest:
    """Return the container of the operator."""
    (container,) = the(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container
