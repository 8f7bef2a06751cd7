"""What `helm test` runs: the leader answers over TLS that its CA vouches for, and TrainJobs are served."""

import json
import os
import ssl
import time
import urllib.request
from pathlib import Path

DEADLINE = time.monotonic() + 60
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def fetch(url: str, authority: Path, token: str | None = None) -> str:
    """Return what is at the URL, trying until the deadline."""
    request = urllib.request.Request(url)  # noqa: S310 - both URLs begin with https
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=str(authority))
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as response:  # noqa: S310
                return response.read().decode()
        except OSError as error:
            if time.monotonic() > DEADLINE:
                raise SystemExit(f"{url}: {error}") from None
            time.sleep(1)


answer = fetch(os.environ["COORDINATOR_URL"] + "/readyz", Path("/etc/elastrain/tls/ca.crt"))
print(f"coordinator: {answer}")

host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT_HTTPS"]
server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
token = (ACCOUNT / "token").read_text()
listed = json.loads(fetch(f"{server}/apis/elastrain.dev/v1alpha1", ACCOUNT / "ca.crt", token))
served = sorted(resource["name"] for resource in listed["resources"])
print(f"served: {', '.join(served)}")
missing = {"trainjobs", "trainjobs/scale", "trainjobs/status"} - set(served)
if missing:
    raise SystemExit(f"not served: {', '.join(sorted(missing))}; install the CRD of this chart's version")
