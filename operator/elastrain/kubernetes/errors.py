"""What the API server answers when it does not do what it was asked: one hierarchy.

ApiError
  NotFound             404
  AlreadyExists        409 on a creation
  Conflict             409: another version or uid than the one named
  Gone                 410: the revision has been compacted; list again
  Invalid              400, 422: the object itself is wrong; sending it again cannot help
  Forbidden            403: permissions, quota, pod security, a namespace that ends
  Unauthorized         401
  Transient            asking again may help; the client has already done so
    TooManyRequests    429
    ServerError        5xx
    Unreachable        no answer, or none that can be read; it may have been done all the same
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """A refusal by the API server.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        reason: the machine-readable reason, such as AlreadyExists.
        message: the server's own text.
        causes: reasons of `details.causes`, such as NamespaceTerminating.
        retry_after: seconds after which the server wants to be asked again.

    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.reason, self.causes = message, status, reason, causes
        self.retry_after = retry_after


class NotFound(ApiError):
    """There is no such object."""


class AlreadyExists(ApiError):
    """An object of this name exists."""


class Conflict(ApiError):
    """The object has another version or uid than the request names."""


class Gone(ApiError):
    """The revision asked for is not kept any more."""


class Invalid(ApiError):
    """The object was refused for what it is."""


class Forbidden(ApiError):
    """The request is not allowed, by permissions or by an admission plug-in."""


class Unauthorized(ApiError):
    """The credentials are not good."""


class Transient(ApiError):
    """Asking again later may help."""


class TooManyRequests(Transient):
    """The API server protects itself."""


class ServerError(Transient):
    """The API server, or a webhook that it asked, failed."""


class Unreachable(Transient):
    """No answer came; what was asked may have been done."""


_CLASSES: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(status: int, body: Mapping[str, Any], *, where: str, retry_after: float | None = None) -> ApiError:
    """Return the exception for an answer.

    Args:
        status: the HTTP status, or `code` of an ERROR event.
        body: a metav1.Status, or whatever came in its place.
        where: what was asked, for the message.
        retry_after: of the header of that name, in seconds.

    """
    reason = str(body.get("reason") or "")
    details = body.get("details")
    details = details if isinstance(details, Mapping) else {}
    causes = details.get("causes")
    found = tuple(str(c.get("reason") or c.get("type") or "") for c in causes or () if isinstance(c, Mapping))
    if reason == "AlreadyExists":
        kind: type[ApiError] = AlreadyExists
    elif reason in ("Expired", "Gone"):
        kind = Gone
    else:
        kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    text = str(body.get("message") or f"{where}: HTTP status {status}")
    return kind(text, status=status, reason=reason, causes=found, retry_after=retry_after)
