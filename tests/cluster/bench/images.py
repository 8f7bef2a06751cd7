"""Container images without a registry: built by buildah from the project's own Dockerfiles, found again by content.

The base is a small Debian with Python, made by mmdebstrap. torch is not in the images: its wheels have over
5 GB, so it is installed once beside the repository and every container of the bench sees it at /opt/torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.bench import tools
from tests.cluster.bench.layout import CACHE, HERE, OPERATOR_IMAGE, REPOSITORY, TRAINER_IMAGE, BenchError
from tests.cluster.bench.process import alive, daemon, kill, locked, run, wait_for

BASE = "docker.io/library/python:3.11-slim"
TORCH_AT = "/opt/torch"
STORAGE = ("--storage-driver=overlay", f"--root={CACHE}/buildah-overlay/root", f"--runroot={CACHE}/buildah-overlay/run")
KEPT = 3
"""How many versions of an archive or store are kept: checkouts side by side, and clones being made of the last."""

CONTEXTS = {
    OPERATOR_IMAGE: (
        "operator/Dockerfile",
        ("operator", "requirements/operator.txt", "pyproject.toml", "README.md", "LICENSE"),
    ),
    TRAINER_IMAGE: ("trainer_image/Dockerfile", ("trainer_image", "requirements", "examples")),
}
"""Each image's Dockerfile and the files that it is made of."""


def torch() -> Path:
    """Return the folder with torch and what it needs, installing it if need be."""
    pins = REPOSITORY / "requirements/trainer.txt"
    target = CACHE / f"torch-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    with locked(CACHE / "torch.lock"):
        if not (target / ".complete").exists():
            print(f"installing torch into {target} (once)", flush=True)
            run(*_uv(), "pip", "install", "--python-version", "3.11", "--target", target, "--require-hashes", "-r",
                pins)  # fmt: skip
            (target / ".complete").touch()
    return target


def _uv() -> tuple[str, ...]:
    for candidate in (shutil.which("uv"), REPOSITORY / ".venv/bin/uv"):
        if candidate and Path(candidate).exists():
            return (str(candidate),)
    venv = CACHE / "uv"
    if not (venv / "bin/uv").exists():
        run("python3", "-m", "venv", venv)
        run(venv / "bin/python", "-m", "pip", "install", "-q", "uv")
    return (str(venv / "bin/uv"),)


def _digest(reference: str, base: Path) -> str:
    """Return the digest of everything that an image is made of."""
    dockerfile, sources = CONTEXTS[reference]
    digest = hashlib.sha256(base.name.encode())
    roots = [REPOSITORY / source for source in (dockerfile, ".dockerignore", *sources)]
    for path in sorted(file for root in roots for file in (root.rglob("*") if root.is_dir() else [root])):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _base() -> Path:
    """Return the archive of the base image, making it if need be."""
    recipe = (
        "mmdebstrap", "--variant=essential", "--mode=root",
        "--include=python3,python3-pip,python3-venv,ca-certificates,libffi8,libgomp1,libstdc++6,procps",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        '--customize-hook=rm -f "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED; ln -sf python3 "$1"/usr/bin/python; '
        f'echo {TORCH_AT} > "$1"/usr/lib/python3/dist-packages/torch.pth; mkdir -p "$1"{TORCH_AT}; '
        'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*',
        "bookworm",
    )  # fmt: skip
    target = CACHE / f"base-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]}.tar"
    if not target.exists():
        print("making the base image (once)", flush=True)
        part = target.with_suffix(".part.tar")
        run(*recipe, part)
        part.rename(target)
    return target


def _buildah(*arguments: str | Path, cwd: Path | None = None) -> str:
    return run("buildah", *STORAGE, *arguments, cwd=cwd).strip()


def _archives() -> list[Path]:
    """Return the archives of all images of the bench, building what changed."""
    folder = CACHE / "images"
    folder.mkdir(parents=True, exist_ok=True)
    base = _base()
    out = [_pause(folder), _python(folder, base)]
    for reference in CONTEXTS:
        name = reference.rsplit("/", 1)[1].split(":")[0]
        target = folder / f"{name}-{_digest(reference, base)}.tar"
        while not target.exists():
            print(f"building {reference}", flush=True)
            part = _build(reference, base, target)
            # A file may have changed during the build: what is kept under a digest is made of what has that digest.
            target = folder / f"{name}-{_digest(reference, base)}.tar"
            if target.stem == part.stem:
                part.rename(target)
        _keep_some(target, folder.glob(f"{name}-*.tar"))
        out.append(target)
    return out


def _keep_some(used: Path, versions: Iterable[Path]) -> None:
    """Remove all but the versions used last."""
    os.utime(used)
    for old in sorted(versions, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()


def _tag(base: Path) -> str:
    return f"localhost/bench-base:{base.stem}"


def _python(folder: Path, base: Path) -> Path:
    """Return the archive of the base under the name that tests know it by."""
    target = folder / f"python-{base.stem}.tar"
    if _tag(base) not in _buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        container = _buildah("from", "scratch")
        _buildah("add", container, base, "/")
        _buildah("commit", "--rm", container, _tag(base))
    if not target.exists():
        _buildah("tag", _tag(base), BASE)
        _push(BASE, target)
    return target


def _pause(folder: Path) -> Path:
    target = folder / f"pause-{tools.folder().name}.tar"
    if not target.exists():
        container = _buildah("from", "scratch")
        _buildah("copy", container, tools.folder() / "pause", "/pause")
        _buildah("config", "--entrypoint", '["/pause"]', container)
        _buildah("commit", "--rm", container, "localhost/pause:3")
        _push("localhost/pause:3", target)
    return target


def _build(reference: str, base: Path, target: Path) -> Path:
    """Build an image and return its archive, which is not yet under the name of `target`."""
    # The machine's way to its package index: certificates and pip's settings, seen by the build, kept in no layer.
    certificates = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
    mounts = {TORCH_AT: torch(), "/etc/ssl/certs/ca-certificates.crt": certificates, "/etc/pip.conf": _pip_settings()}
    volumes = [f"--volume={source}:{place}:ro" for place, source in mounts.items() if source.exists()]
    _forget_old_layers()
    _buildah("bud", "--layers", "--isolation", "chroot", "--pull-never", "--network", "host", *volumes, "--build-arg",
             f"BASE_IMAGE={_tag(base)}", "-t", reference, "-f", CONTEXTS[reference][0], ".",
             cwd=REPOSITORY)  # fmt: skip
    return _push(reference, target.with_suffix(".part"))


def _pip_settings() -> Path:
    index = os.environ.get("PIP_INDEX_URL")
    if not index:
        return Path("/etc/pip.conf")
    settings = CACHE / "pip.conf"
    settings.touch(mode=0o600)
    settings.write_text(f"[global]\nindex-url = {index}\n")
    return settings


def _forget_old_layers() -> None:
    """Keep the layers of builds, from which the next goes on, from growing without end."""
    if len(_buildah("images", "--filter", "dangling=true", "--quiet").splitlines()) > 40:
        _buildah("rmi", "--prune")


def _push(reference: str, target: Path) -> Path:
    """Write an image to an archive, uncompressed: it is read once, on this machine."""
    part = target.with_suffix(".push")
    part.unlink(missing_ok=True)
    _buildah("push", reference, f"docker-archive:{part}:{reference}")
    part.rename(target)
    return target


def store() -> Path:
    """Return a containerd store that has all images and no containers, for nodes to clone."""
    with locked(CACHE / "images.lock"):
        target = _store(_archives())
        _keep_some(target, (CACHE / "stores").iterdir())
    return target / "root"


def _store(files: list[Path]) -> Path:
    target = CACHE / "stores" / hashlib.sha256(repr([f.name for f in files]).encode()).hexdigest()[:16]
    if (target / ".complete").exists():
        return target
    target.parent.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    before = [path for path in target.parent.iterdir() if (path / "archives").exists()]
    known = []
    if before:  # most images are those of the last store
        last = max(before, key=lambda path: path.stat().st_mtime)
        clone(last / "root", target / "root")
        known = (last / "archives").read_text().split()
    binaries, socket, pidfile = tools.folder(), target / "state/socket", target / "containerd.pid"
    config = target / "config.toml"
    config.write_text("version = 3\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n")
    daemon([binaries / "containerd", "--config", config, "--root", target / "root", "--state", target / "state",
            "--address", socket], target / "log", pidfile, {"PATH": f"{binaries}:{os.environ['PATH']}"})  # fmt: skip
    try:
        wait_for(lambda: _answers(binaries, socket), 20, "containerd", {"containerd": (pidfile, target / "log")})
        control = (binaries / "ctr", "-a", socket, "-n", "k8s.io")
        for file in files:
            if file.name not in known:
                run(*control, "images", "import", "--local", file)
        run(*control, "content", "prune", "references")  # unpacked as they are, the layers' blobs are of no use
    finally:
        if alive(pidfile):
            kill(pidfile)
    shutil.rmtree(target / "state", ignore_errors=True)
    (target / "archives").write_text("\n".join(file.name for file in files))
    (target / ".complete").touch()
    return target


def clone(images: Path, target: Path) -> None:
    """Copy a store by hard links; its databases are copied for real, since each copy is written to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run("cp", "-al", images, target)
    for database in images.rglob("*.db"):
        run("cp", "--remove-destination", database, target / database.relative_to(images))


def _answers(binaries: Path, socket: Path) -> bool:
    done = subprocess.run([binaries / "ctr", "-a", socket, "version"], capture_output=True, check=False)
    return done.returncode == 0


def check() -> None:
    """Raise a BenchError if the project's Dockerfiles are not where they should be."""
    for dockerfile, _ in CONTEXTS.values():
        if not (REPOSITORY / dockerfile).exists():
            raise BenchError(f"{dockerfile} is missing; run from a whole checkout ({HERE} is the bench)")
