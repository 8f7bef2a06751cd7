"""The programs of the cluster: built once from pinned Go modules, found again by the hash of what they are made of."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cluster.bench.layout import CACHE, HERE, VERSION, BenchError
from tests.cluster.bench.process import locked, run

PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "sysctl": "procps",
}
"""Programs and the Debian packages that have them."""

COMPILER = {"cc": "gcc", "pkg-config": "pkg-config"}
LIBRARIES = ("libc6-dev", "libseccomp-dev")
"""What runc is built with."""

GO_FLAGS = "-mod=readonly -trimpath -buildvcs=false"
LINK = "-s -w"
STAMP = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A folder below modules/ with a go.mod and go.sum, and the programs that are built from it.

    `link` are flags of the linker, `tags` those of the compiler; `cgo` says whether C code is part of it.
    """

    folder: str
    packages: tuple[str, ...]
    names: tuple[str, ...] = ()
    link: str = LINK
    tags: str = ""
    cgo: bool = False


KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy")
CONTAINERD = ("containerd", "ctr", "containerd-shim-runc-v2")
PLUGINS = ("main/bridge", "ipam/host-local", "main/loopback", "meta/portmap")

MODULES = (
    Module(
        "kubernetes",
        tuple(f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES),
        link=f"{LINK} -X {STAMP}.gitVersion={VERSION} -X {STAMP}.gitMajor=1"
        f" -X {STAMP}.gitMinor={VERSION.split('.')[1]} -X {STAMP}.gitTreeState=clean",
    ),
    Module("kubernetes", ("go.etcd.io/etcd/server/v3",), ("etcd",)),
    Module("dns", (".",), ("coredns",)),
    Module("pause", (".",), ("pause",)),
    Module("containerd", tuple(f"github.com/containerd/containerd/v2/cmd/{name}" for name in CONTAINERD)),
    Module("cni", tuple(f"github.com/containernetworking/plugins/plugins/{name}" for name in PLUGINS)),
    Module("runc", ("github.com/opencontainers/runc",), tags="seccomp", cgo=True),
    Module("helm", ("helm.sh/helm/v3/cmd/helm",)),
)
"""Everything that is built, in this order: what shares packages with the one before comes next to it."""


def _key() -> str:
    digest = hashlib.sha256(repr((MODULES, GO_FLAGS)).encode())
    for path in sorted((HERE / "modules").rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def folder() -> Path:
    """Return the folder of the built programs, the same for all of a process's life; building them if need be."""
    target = CACHE / "tools" / _key()
    if not (target / ".complete").exists():
        with locked(CACHE / "tools.lock"):
            if not (target / ".complete").exists():
                _build(target)
                (target / ".complete").touch()
    return target


def _build(target: Path) -> None:
    if shutil.which("go") is None:
        raise BenchError("the bench builds Kubernetes from source and needs Go 1.26 or newer on PATH")
    ensure_packages(LIBRARIES)
    target.mkdir(parents=True, exist_ok=True)
    print(f"building the cluster's programs into {target} (once; 20 minutes on two cores)", flush=True)
    for module in MODULES:
        names = module.names or tuple(package.rsplit("/", 1)[1] for package in module.packages)
        print(f"  {' '.join(names)}", flush=True)
        output = target / module.names[0] if module.names else f"{target}/"
        tags = ("-tags", module.tags) if module.tags else ()
        run(
            "go", "build", *tags, "-ldflags", module.link, "-o", output, *module.packages,
            cwd=HERE / "modules" / module.folder, env={"CGO_ENABLED": str(int(module.cgo)), "GOFLAGS": GO_FLAGS},
        )  # fmt: skip


def ensure_packages(libraries: tuple[str, ...] = ()) -> None:
    """Install the Debian packages that the bench needs and the machine lacks.

    Args:
        libraries: packages that have no program of their own.

    Raises:
        BenchError: something is missing and cannot be installed here.

    """
    needed = {**PACKAGES, **(COMPILER if libraries else {})}
    missing = [package for program, package in needed.items() if shutil.which(program) is None]
    missing += [name for name in libraries if not Path(f"/usr/share/doc/{name}").exists()]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BenchError(f"the test cluster needs root and these Debian packages: {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", env=quiet)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, env=quiet)
