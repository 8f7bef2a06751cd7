"""How a process of ours logs: one line an event, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum


class LogFormat(StrEnum):
    """How a line looks."""

    PLAIN = "plain"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(level: str, style: LogFormat) -> None:
    """Log to the standard error.

    Args:
        level: the least severe level that is shown, such as INFO.
        style: how a line looks.

    """
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf speaks of every event that it hears; what follows from them is told by ours.
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    logging.getLogger("asyncio").setLevel(logging.WARNING)
