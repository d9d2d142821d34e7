"""Options and arguments that several groups of commands have, each written once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from blindpost.serving.failures import OperatorError


def config_option(title: str, variable: str) -> Any:
    """Where a server is: its configuration file or folder, also from a variable."""
    return typer.Option(
        "--config",
        "-c",
        envvar=variable,
        help=f"The {title}'s configuration file, or the folder it is in.",
        show_default="the current folder",
    )


def checked_host(text: str) -> str:
    """What is given with --host: no file has it yet that a message could name."""
    from blindpost.serving.sections import host_text

    text.encode()  # a name that is not UTF-8 is told as that, whichever option it is in
    try:
        return host_text(text)
    except ValueError as error:
        raise OperatorError(f"--host: {error}.") from error


CONFIG_VARIABLE = "BLINDPOST_ROUTER"
ConfigOption = Annotated[Path, config_option("router", CONFIG_VARIABLE)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.NAME=VALUE",
        help="Another value for a setting of the new configuration, in TOML. May be repeated.",
        show_default=False,
    ),
]
TopOption = Annotated[
    bool,
    typer.Option("--top", help="Show what the largest holders have and how often limits applied, as counts."),
]


class KeyAlgorithm(Enum):
    """What a router's certificates are signed with."""

    ED25519 = "ed25519"
    ED448 = "ed448"


AlgorithmOption = Annotated[KeyAlgorithm, typer.Option(help="Algorithm of the certificates.")]
DsnOption = Annotated[
    str,
    typer.Option(
        help="Address of the database: postgresql://user@host/database. Better no password in it: others "
        "on this machine see command lines. Use ~/.pgpass or PGPASSWORD.",
        show_default=False,
    ),
]

CaKeyTarget = Annotated[
    Path, typer.Argument(metavar="TARGET", help="A folder, such as a mounted USB stick, or a new file.")
]
CaKeyOption = Annotated[
    Path | None, typer.Option("--ca-key", help="Where the CA key is, if it is kept away from the router.")
]
WithCaKeyOption = Annotated[bool, typer.Option("--with-ca-key", help="Copy the CA key too.")]

BackupTarget = Annotated[
    Path, typer.Argument(help="The folder to write: a new one, outside the server's own.")
]
BackupFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `backup` made.")]
RestoreTo = Annotated[Path, typer.Option(help="The server's folder; with --force it may exist.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the server that is there; it is moved aside.")
]

NewRouterOption = Annotated[
    Path, typer.Option("--to", help="The new, stopped router: its configuration file or folder.")
]
UnstartedOption = Annotated[
    Path, typer.Option("--to", help="The new router, before its first start: its file or folder.")
]
StoppedOption = Annotated[
    Path, typer.Option("--from", help="A stopped router: its configuration file or folder.")
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(help="Where the certificate is written.", show_default="beside the configuration"),
]
