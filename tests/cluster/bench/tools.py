"""The programs of the cluster: built once from pinned Go modules, found again by the hash of what they are made of."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.bench.layout import CACHE, HERE, VERSION, BenchError
from tests.cluster.bench.process import run

PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "pkg-config": "pkg-config",
    "sysctl": "procps",
}
"""Programs and the Debian packages that have them."""

FLAGS = ("-trimpath", "-buildvcs=false")
LINK = "-s -w"

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy")
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
PLUGINS = "github.com/containernetworking/plugins/plugins"

INSTALLED = (
    *(f"{CONTAINERD}/{name}@v2.3.7" for name in ("containerd", "ctr", "containerd-shim-runc-v2")),
    *(f"{PLUGINS}/{name}@v1.10.0" for name in ("main/bridge", "ipam/host-local", "main/loopback", "meta/portmap")),
    "helm.sh/helm/v3/cmd/helm@v3.22.0",
)
RUNC = "github.com/opencontainers/runc@v1.4.4"


def _key() -> str:
    digest = hashlib.sha256(repr((FLAGS, LINK, KUBERNETES, INSTALLED, RUNC, VERSION)).encode())
    for path in sorted((HERE / "tools").rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """Return the folder of the built programs; building them if need be."""
    target = CACHE / "tools" / _key()
    if (target / ".complete").exists():
        return target
    with locked(CACHE / "tools.lock"):
        if not (target / ".complete").exists():
            _build(target)
            (target / ".complete").touch()
    return target


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other runs of the bench on this machine wait for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path) -> None:
    if shutil.which("go") is None:
        raise BenchError("the bench builds Kubernetes from source and needs Go 1.26 or newer on PATH")
    ensure_packages(libraries=("libseccomp-dev",))
    target.mkdir(parents=True, exist_ok=True)
    print(f"building the cluster's programs into {target} (once; 20 minutes on two cores)", flush=True)
    env = {"CGO_ENABLED": "0", "GOFLAGS": " ".join(FLAGS), "GOBIN": str(target)}
    modules = HERE / "tools"
    ldflags = (
        f"{LINK} -X k8s.io/component-base/version.gitVersion={VERSION}"
        " -X k8s.io/component-base/version.gitMajor=1"
        f" -X k8s.io/component-base/version.gitMinor={VERSION.split('.')[1]}"
        " -X k8s.io/component-base/version.gitTreeState=clean"
    )
    commands = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES]
    _say(
        "Kubernetes",
        lambda: run(
            "go", "build", "-ldflags", ldflags, "-o", f"{target}/", *commands, cwd=modules / "kubernetes", env=env
        ),
    )
    _say(
        "etcd",
        lambda: run(
            "go",
            "build",
            "-ldflags",
            LINK,
            "-o",
            target / "etcd",
            "go.etcd.io/etcd/server/v3",
            cwd=modules / "kubernetes",
            env=env,
        ),
    )
    for name, program in (("dns", "coredns"), ("pause", "pause")):
        _say(
            program,
            lambda name=name, program=program: run(
                "go", "build", "-ldflags", LINK, "-o", target / program, ".", cwd=modules / name, env=env
            ),
        )  # type: ignore[misc]
    for package in INSTALLED:
        _say(
            package.rsplit("/", 1)[1], lambda package=package: run("go", "install", "-ldflags", LINK, package, env=env)
        )  # type: ignore[misc]
    _say(
        "runc",
        lambda: run("go", "install", "-tags", "seccomp", "-ldflags", LINK, RUNC, env={**env, "CGO_ENABLED": "1"}),
    )


def _say(what: str, build: object) -> None:
    print(f"  {what}", flush=True)
    build()  # type: ignore[operator]


def ensure_packages(libraries: tuple[str, ...] = ()) -> None:
    """Install the Debian packages that the bench needs and the machine lacks.

    Raises:
        BenchError: something is missing and cannot be installed here.

    """
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    missing += [name for name in libraries if not Path(f"/usr/share/doc/{name}").exists()]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BenchError(f"the test cluster needs root and these Debian packages: {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", env=quiet)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, env=quiet)
