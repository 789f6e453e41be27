"""Lets schemathesis meet what is there, and keeps it away from streams, which do not end."""

import zlib

import schemathesis

# What the test made before it asked; see tests/schemathesis.rs.
KNOWN = {
    "tenant_id": "fuzz",
    "site_id": "fuzz",
    "camera_uuid": "camera",
    "zone_id": "1",
    "runner_id": "runner",
    "name": "holder",
}


@schemathesis.hook
def filter_path_parameters(context, path_parameters):
    return not path_parameters or path_parameters.get("method") != "watch"


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Every second path leads to something that exists, or did. The same seed, the same paths."""
    if not path_parameters:
        return path_parameters
    coin = zlib.crc32(repr(sorted(path_parameters.items())).encode("utf-8", "replace"))
    if coin % 2:
        return path_parameters
    return {name: KNOWN.get(name, value) for name, value in path_parameters.items()}
