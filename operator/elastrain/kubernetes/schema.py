"""Whether the CRD that the cluster serves has all fields that this release writes and reads.

An API server drops fields that its schema lacks without a word, so an older CRD would lose a round's number or
a user's setting. One that has more fields is fine: it is a newer release's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from elastrain.api import GROUP, PLURAL, VERSION
from elastrain.api.crd import crd
from elastrain.kubernetes.client import CRDS, Client
from elastrain.kubernetes.errors import Forbidden, NotFound

log = logging.getLogger(__name__)

NAME = f"{PLURAL}.{GROUP}"
REMEDY = "apply this release's: elastrain crd | kubectl apply -f -"


class UnusableCRD(Exception):
    """The CRD is missing or older than this release."""


async def check_crd(client: Client) -> None:
    """Return if the served CRD is fit for this release.

    Raises:
        UnusableCRD: it is not; the text says what to do.
        ApiError: the API server did not say.

    """
    try:
        served = await client.get(CRDS, None, NAME)
    except NotFound:
        raise UnusableCRD(f"the CRD {NAME} is not installed; {REMEDY}") from None
    except Forbidden as error:
        log.warning("the CRD %s cannot be checked: %s", NAME, error.message)
        return
    missing = sorted(missing_fields(served))
    if missing:
        some = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise UnusableCRD(f"the CRD {NAME} is older than this release, it lacks {some}; {REMEDY}")


def missing_fields(served: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of this release's schema that the served CRD lacks; pure."""
    for version in served["spec"]["versions"]:
        if version["name"] == VERSION and version.get("served"):
            have = version["schema"]["openAPIV3Schema"]
            break
    else:
        yield f"version {VERSION}"
        return
    yield from _missing(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], have, "")


def _missing(want: Mapping[str, Any], have: Mapping[str, Any], at: str) -> Iterator[str]:
    if isinstance(want.get("items"), Mapping):
        yield from _missing(want["items"], have.get("items") or {}, f"{at}[]")
    present = have.get("properties") or {}
    for name, schema in (want.get("properties") or {}).items():
        path = f"{at}.{name}".lstrip(".")
        if name not in present:
            yield path
        else:
            yield from _missing(schema, present[name], path)
