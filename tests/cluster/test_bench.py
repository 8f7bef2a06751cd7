"""The test cluster itself: what runs on it behaves as on any cluster, its nodes fail as told, and it leaves nothing."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bench import cluster as clusters
from tests.cluster.bench import network
from tests.cluster.bench import node as bench_node
from tests.cluster.bench.layout import CACHE, TRAINER_IMAGE, VERSION, BenchError, Cluster
from tests.cluster.bench.node import Node
from tests.cluster.bench.process import kill, record
from tests.cluster.target import Target

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(os.environ.get("KUBECONFIG")), reason="KUBECONFIG names a cluster: the bench is not used"),
]

SERVER = """
import http.server, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(socket.gethostname().encode())
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def pod(name: str, node: str, program: str, **container: Any) -> dict[str, Any]:
    """Return a pod that runs a Python program on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "hostname": name,
            "subdomain": "web",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": TRAINER_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-u", "-c", textwrap.dedent(program)],
                    **container,
                }
            ],
        },
    }


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service for the pod `server`."""
    ports = [{"port": 80, "targetPort": 8080}]
    body = {"selector": {"app": "server"}, "ports": ports, **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def output(cluster: Target, namespace: str, body: dict[str, Any]) -> str:
    """Run a pod to its end and return what it wrote; a BenchError if it fails."""
    cluster.apply(namespace, body)
    name = body["metadata"]["name"]
    phase = cluster.eventually(lambda: ended(cluster, namespace, name), f"{name} to end", 120)
    log = cluster.kubectl("logs", "-n", namespace, name)
    assert phase == "Succeeded", log
    return log


def ended(cluster: Target, namespace: str, name: str) -> str | None:
    """Return the phase of a pod that has ended."""
    phase = cluster.get("pod", "-n", namespace, name)["status"]["phase"]
    return phase if phase in ("Succeeded", "Failed") else None


def ready(cluster: Target, node: str) -> bool:
    """Return whether a node is ready, as the control plane sees it."""
    conditions = cluster.get("node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_three_nodes_are_ready(bare: Target) -> None:
    nodes = bare.get("nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node1", "node2", "node3"]
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {VERSION}
    assert all(ready(bare, node["metadata"]["name"]) for node in nodes)


def test_names_and_services_lead_from_node_to_node(bare: Target, namespace: str) -> None:
    bare.apply(namespace, pod("server", "node1", SERVER), service("web", clusterIP="None"), service("virtual"))
    server = bare.eventually(lambda: bare.get("pod", "-n", namespace, "server")["status"].get("podIP"), "its address")
    virtual = bare.get("service", "-n", namespace, "virtual")["spec"]["clusterIP"]
    program = f"""
        import socket, time, urllib.request
        def attempt(action):
            for _ in range(150):
                try: return action()
                except OSError: time.sleep(0.2)
            return action()
        for name in ("server.web.{namespace}.svc.cluster.local", "server.web", "virtual"):
            print(attempt(lambda: socket.gethostbyname(name)))
            port = 80 if name == "virtual" else 8080
            print(attempt(lambda: urllib.request.urlopen(f"http://{{name}}:{{port}}", timeout=2).read().decode()))
        try: socket.gethostbyname("nobody.web")
        except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)
    """
    got = output(bare, namespace, pod("client", "node2", program)).split()
    assert got == [server, "server", server, "server", virtual, "server", "True"]
    assert server.startswith("10.68.1.")
    assert virtual.startswith("10.67.0.")


def test_torch_is_there_for_any_user(bare: Target, namespace: str) -> None:
    security = {"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": True, "readOnlyRootFilesystem": True}
    program = "import os, torch; print(os.getuid(), torch.arange(4).sum().item())"
    body = pod("torch", "node3", program, image="python:3.11-slim", securityContext=security)
    assert output(bare, namespace, body) == "65532 6\n"


def test_the_memory_limit_is_real(bare: Target, namespace: str) -> None:
    program = "kept = [b'x' * 2**20 for _ in range(1000)]"
    bare.apply(namespace, pod("greedy", "node1", program, resources={"limits": {"memory": "64Mi"}}))
    assert bare.eventually(lambda: ended(bare, namespace, "greedy"), "the end of greedy", 60) == "Failed"
    (status,) = bare.get("pod", "-n", namespace, "greedy")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "OOMKilled"
    assert status["state"]["terminated"]["exitCode"] == 137


def test_a_node_loses_its_power_and_comes_back(bare: Target, namespace: str, nodes: Callable[[str], Node]) -> None:
    body = pod("steady", "node3", SERVER)
    body["spec"]["restartPolicy"] = "Always"
    bare.apply(namespace, body)
    bare.kubectl("wait", "-n", namespace, "pod/steady", "--for=condition=Ready", "--timeout=60s")
    uid = bare.get("pod", "-n", namespace, "steady")["metadata"]["uid"]
    nodes("node3").crash()
    bare.eventually(lambda: not ready(bare, "node3"), "node3 to be missed", 60)
    nodes("node3").restore()
    bare.eventually(lambda: ready(bare, "node3"), "node3 to be back", 60)

    def restarted() -> bool:
        found = bare.get("pod", "-n", namespace, "steady")
        return found is None or found["status"]["containerStatuses"][0]["restartCount"] == 1

    bare.eventually(restarted, "the pod to run again", 60)
    found = bare.get("pod", "-n", namespace, "steady")
    assert found is None or found["metadata"]["uid"] == uid


@pytest.mark.parametrize("way", ["stop", "cut"])
def test_a_node_hangs_or_is_cut_off(bare: Target, nodes: Callable[[str], Node], way: str) -> None:
    getattr(nodes("node2"), way)()
    bare.eventually(lambda: not ready(bare, "node2"), "node2 to be missed", 60)
    assert ready(bare, "node1")
    nodes("node2").restore()
    bare.eventually(lambda: ready(bare, "node2"), "node2 to be back", 60)


@pytest.fixture
def other() -> Iterator[Cluster]:
    """The name of a cluster beside that of the other tests."""
    cluster = Cluster(f"beside-{os.getpid()}")
    yield cluster
    clusters.down(cluster)


def surroundings() -> str:
    """Return the machine's own links, addresses, routes and packet rules."""
    looks = (["ip", "-o", "addr"], ["ip", "route"], ["nft", "list", "ruleset"], ["sysctl", "-n", "net.ipv4.ip_forward"])
    return "\n".join(subprocess.run(look, capture_output=True, text=True, check=True).stdout for look in looks)


def test_a_cluster_leaves_the_machine_as_it_was(other: Cluster) -> None:
    before = surroundings()
    clusters.up(other, nodes=1)
    target = Target(other, "", TRAINER_IMAGE)
    target.apply("default", pod("steady", "node1", SERVER))
    target.kubectl("wait", "pod/steady", "--for=condition=Ready", "--timeout=60s")
    assert surroundings() == before
    with pytest.raises(BenchError, match="exists already"):
        clusters.up(other)
    # Files, two namespaces, a folder in each hierarchy of cgroups, and the programs: the measure is not blind.
    assert len(clusters.leftovers(other)) > 10
    clusters.down(other)
    assert clusters.leftovers(other) == []
    assert surroundings() == before


def test_a_daemon_that_dies_is_told_of_at_once_and_nothing_is_left(
    other: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_node, "_kubelet", lambda *_: {"kind": "KubeletConfiguration", "apiVersion": "nonsense"})
    with pytest.raises(BenchError, match=r"(?s)kubelet of node1 ended with 1:.*nonsense") as failure:
        clusters.up(other, nodes=1)
    assert (CACHE / "last-failure/nodes/node1/kubelet.log").exists()
    assert "last-failure" in failure.value.__notes__[0]
    assert clusters.leftovers(other) == []


def test_a_cluster_whose_owner_died_is_removed_by_the_next(other: Cluster) -> None:
    other.state.mkdir(parents=True)
    network.up(other)
    record(other.owner, os.getpid())
    clusters.remove_abandoned()
    assert network.exists(other.netns)
    dead = subprocess.Popen(["true"])
    record(other.owner, dead.pid)
    dead.wait()
    clusters.remove_abandoned()
    assert clusters.leftovers(other) == []


def test_a_cluster_with_a_longer_name_is_not_touched(other: Cluster) -> None:
    longer = Cluster(f"{other.name}-2")
    network.up(longer)
    try:
        clusters.down(other)
        assert network.exists(longer.netns)
    finally:
        network.down(longer)
    with pytest.raises(BenchError, match="cannot name a cluster"):
        Cluster(f"{other.name}-node1")


def test_a_process_id_that_was_used_again_is_spared(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            pidfile = tmp_path / "pid"
            record(pidfile, process.pid)
            pid, start = pidfile.read_text().split()
            pidfile.write_text(f"{pid} {int(start) - 1}")
            kill(pidfile)
            assert process.poll() is None
            pidfile.write_text(f"{pid} {start}")
            kill(pidfile)
        finally:
            process.kill()
    assert process.returncode == -9
