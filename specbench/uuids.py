"""UUIDs as they are typed and as Polyaxon writes them: with dashes or without, in either case."""

import uuid


def hex_uuid(text: str) -> str | None:
    """The 32 lower-case digits of a UUID, None when `text` is none."""
    try:
        return uuid.UUID(text).hex
    except ValueError:
        return None
