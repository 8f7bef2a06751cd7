"""Certificates that are renewed in place are served to the next client."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from tests.unit.coordination.service import Service, write_certificate

from elastrain.coordination import server_context


async def served(service: Service, trusting: ssl.SSLContext, name: str | None = "localhost") -> bytes:
    """Shake hands once and return the certificate that was shown."""
    host, port = service.url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=trusting, server_hostname=name)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    assert isinstance(shown, bytes)
    return shown


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])  # a client that asks for an address sends no name
async def test_a_renewed_certificate_is_served(
    service: Service, certificates: Path, authority: trustme.CA, trusting: ssl.SSLContext, name: str
) -> None:
    first = await served(service, trusting, name)
    assert await served(service, trusting, name) == first
    write_certificate(authority, certificates)
    second = await served(service, trusting, name)
    assert second != first
    assert second == ssl.PEM_cert_to_DER_cert((certificates / "tls.crt").read_text())


async def test_the_old_certificate_is_served_until_the_new_pair_fits(
    service: Service, certificates: Path, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    first = await served(service, trusting)
    other = authority.issue_cert("localhost", "127.0.0.1")
    other.cert_chain_pems[0].write_to_path(certificates / "tls.crt")  # its key is not there yet
    assert await served(service, trusting) == first
    (certificates / "tls.key").unlink()
    assert await served(service, trusting) == first
    other.private_key_pem.write_to_path(certificates / "tls.key")
    assert await served(service, trusting) != first


def test_a_folder_without_certificates_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        server_context(tmp_path)
