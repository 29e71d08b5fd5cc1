"""URLs of object stores and web servers, as pyarrow and fsspec open them."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

# Parameters that sign a URL of S3 (two versions), CloudFront and Google's store, and those of Azure's beside a ``sig``.
_SIGNED: Final = (
    r"x-(amz|goog)-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id|(access|sas)_token"
)
_SIGNED_BY_AZURE: Final = r"s[vrpeti]|sig|ss|srt|spr|sip|sk(oid|tid|t|e|s|v)|saoid|scid"


def is_url(given: str | os.PathLike[str]) -> bool:
    """Whether it is a URL, and no path."""
    return "://" in os.fspath(given) and len(urlsplit(os.fspath(given)).scheme) > 1


def without_query(url: str) -> tuple[str, str]:
    """A path or URL without its query (``?region=...``), and the query with its question mark."""
    plain, mark, query = url.partition("?") if is_url(url) else (url, "", "")
    return plain, mark + query


_SECRET: Final = r".*(token|key|secret|passw|auth|credential).*"  # a parameter that gives access, and may name the file


def public_url(url: str) -> str:
    """A URL without what gives access: a password, and parameters that sign it; of others that look secret a digest
    stays, which tells one file from another. A path is returned as it is."""
    if not is_url(url):
        return url
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    given = [each.partition("=") for each in parts.query.split("&")]
    signed = f"{_SIGNED}|{_SIGNED_BY_AZURE}" if any(each[0] == "sig" for each in given) else _SIGNED
    query = "&".join(
        f"{name}={_digest(value)}" if value and re.fullmatch(_SECRET, name, re.IGNORECASE) else f"{name}{equals}{value}"
        for name, equals, value in given
        if not re.fullmatch(signed, name, re.IGNORECASE)
    )
    place = host if ":" in user or not user else f"{user}@{host}"  # of abfs:// the user is a container
    return urlunsplit((parts.scheme, place, parts.path, query, parts.fragment))


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:12]


def open_file_system(path: str) -> tuple[Any, str]:
    """The ``pyarrow.fs.FileSystem`` of a path or URL, and its name there. What follows ``?`` are options of the file
    system (``endpoint_override``, ``region``), but of ``https://``, where it belongs to the name.

    Raises:
        ImportError: Without pyarrow, or without fsspec and aiohttp for ``https://``.
    """
    try:
        import pyarrow.fs as fs
    except ImportError as error:
        raise ImportError(f"{path} needs pyarrow: pip install 'glt-graph[tables]'") from error
    if not is_url(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    scheme = urlsplit(path).scheme
    if scheme in ("http", "https"):
        try:
            import fsspec

            opened = fsspec.filesystem(scheme)
        except ImportError as error:
            raise ImportError(f"{path} needs fsspec and aiohttp: pip install fsspec aiohttp") from error
        return fs.PyFileSystem(fs.FSSpecHandler(opened)), path
    opened, inside = fs.FileSystem.from_uri(path)
    return opened, inside
