"""What an operator says in public about a server, and what the server says of itself."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Information:
    """The operator's words. Empty ones are not shown."""

    operator: str = ""
    operator_country: str = ""
    website: str = ""
    server_country: str = ""
    hosting: str = ""
    hosting_country: str = ""
    hosting_type: str = ""
    usage_conditions: str = ""
    condition_amendments: str = ""
    admin_simplex: str = ""
    admin_email: str = ""
    admin_pgp: str = ""
    admin_pgp_fingerprint: str = ""
    complaints_simplex: str = ""
    complaints_email: str = ""
    complaints_pgp: str = ""
    complaints_pgp_fingerprint: str = ""
    source_code: str = ""
    """Where the source of the running program is, if the site itself is not to serve it."""

    def rows(self) -> list[tuple[str, str]]:
        """What is said, each with its label."""
        values = ((field.name, str(getattr(self, field.name))) for field in fields(self))
        return [(_LABELS[name], value) for name, value in values if value and name in _LABELS]


_LABELS = {
    "operator": "Operator",
    "operator_country": "Operator's country",
    "website": "Website",
    "server_country": "Server's country",
    "hosting": "Hosting provider",
    "hosting_country": "Provider's country",
    "hosting_type": "Kind of hosting",
    "usage_conditions": "Conditions of use",
    "condition_amendments": "Amendments",
    "admin_simplex": "Administrator",
    "admin_email": "Administrator's email",
    "admin_pgp": "Administrator's PGP key",
    "admin_pgp_fingerprint": "PGP fingerprint",
    "complaints_simplex": "Complaints",
    "complaints_email": "Complaints by email",
    "complaints_pgp": "PGP key for complaints",
    "complaints_pgp_fingerprint": "PGP fingerprint for complaints",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the running server knows about itself; read again for every page."""

    host: str
    address: str
    """What users add to their app. Without the password, if one is needed."""
    version: str
    policies: tuple[tuple[str, str], ...]
    """What the settings mean for users: a label and a sentence each."""
    information: Information = Information()
