"""What Blindpost is made of, as a CycloneDX list: every pinned dependency of the lock file with its hashes.

The same lock gives the same bytes: the list has no time in it, and its number is made of its content.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

SPEC_VERSION = "1.6"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components_of(lock: str) -> list[dict[str, Any]]:
    """Each pin of a lock file, in order; one without a hash is an error."""
    pins = list(_PINNED.finditer(lock))
    ends = [pin.start() for pin in pins[1:]] + [len(lock)]
    found = []
    for pin, end in zip(pins, ends, strict=True):
        name, version = pin.group(1).lower().replace("_", "-"), pin.group(2)
        hashes = _HASH.findall(lock, pin.end(), end)
        if not hashes:
            raise SystemExit(f"{name} {version} has no hash in the lock file; run `make lock`.")
        purl = f"pkg:pypi/{name}@{version}"
        found.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
            }
        )
    return found


def sbom(project: dict[str, Any], lock: str) -> dict[str, Any]:
    """The whole list, for this project."""
    name, version = project["name"], str(project.get("version", "0"))
    root = f"pkg:pypi/{name}@{version}"
    components = components_of(lock)
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, components]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"name": str(project.get("license", "see LICENSE"))}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the list of dependencies as CycloneDX.")
    parser.add_argument("lock", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    pyproject = tomllib.loads((arguments.lock.parent / "pyproject.toml").read_text())
    made = sbom(pyproject["project"], arguments.lock.read_text())
    arguments.out.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{arguments.out}: {len(made['components'])} dependencies")


if __name__ == "__main__":
    main()
