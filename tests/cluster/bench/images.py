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
        ("operator", "requirements/build.txt", "requirements/operator.txt", "pyproject.toml", "README.md", "LICENSE"),
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


def _digest(paths: list[Path], *extra: str) -> str:
    digest = hashlib.sha256(repr(extra).encode())
    for path in sorted(paths):
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
    for reference, (dockerfile, sources) in CONTEXTS.items():
        files = [REPOSITORY / dockerfile, REPOSITORY / ".dockerignore"]
        for source in sources:
            path = REPOSITORY / source
            files += [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        name = reference.rsplit("/", 1)[1].split(":")[0]
        target = folder / f"{name}-{_digest(files, base.name)}.tar"
        if not target.exists():
            print(f"building {reference}", flush=True)
            _build(reference, dockerfile, base, target)
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


def _build(reference: str, dockerfile: str, base: Path, target: Path) -> None:
    mounts = [f"{torch()}:{TORCH_AT}:ro"]
    # The machine's way to its package index: a certificate and pip's settings, seen by the build, kept by no layer.
    mounts += [
        f"{file}:{file}:ro" for file in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf") if Path(file).exists()
    ]
    settings = [f"--env={name}" for name in ("PIP_CERT", "PIP_INDEX_URL") if name in os.environ]
    _buildah("bud", "--layers", "--isolation", "chroot", "--pull-never", "--network", "host", "--build-arg",
             f"BASE_IMAGE={_tag(base)}", *settings,
             *(word for mount in mounts for word in ("-v", mount)), "-t", reference, "-f", dockerfile, ".",
             cwd=REPOSITORY)  # fmt: skip
    _push(reference, target)


def _push(reference: str, target: Path) -> None:
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    _buildah("push", "--disable-compression", reference, f"oci-archive:{part}:{reference}")
    part.rename(target)


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
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    binaries, socket, pidfile = tools.folder(), target / "state/socket", target / "containerd.pid"
    config = target / "config.toml"
    config.write_text("version = 3\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n")
    daemon([binaries / "containerd", "--config", config, "--root", target / "root", "--state", target / "state",
            "--address", socket], target / "log", pidfile, {"PATH": f"{binaries}:{os.environ['PATH']}"})  # fmt: skip
    try:
        wait_for(lambda: _answers(binaries, socket), 20, "containerd", {"containerd": (pidfile, target / "log")})
        for file in files:
            run(binaries / "ctr", "-a", socket, "-n", "k8s.io", "images", "import", "--local", file)
    finally:
        if alive(pidfile):
            kill(pidfile)
    shutil.rmtree(target / "state", ignore_errors=True)
    (target / ".complete").touch()
    return target


def _answers(binaries: Path, socket: Path) -> bool:
    done = subprocess.run([binaries / "ctr", "-a", socket, "version"], capture_output=True, check=False)
    return done.returncode == 0


def check() -> None:
    """Raise a BenchError if the project's Dockerfiles are not where they should be."""
    for dockerfile, _ in CONTEXTS.values():
        if not (REPOSITORY / dockerfile).exists():
            raise BenchError(f"{dockerfile} is missing; run from a whole checkout ({HERE} is the bench)")
