"""The command line. Every command ends with 0 if all laws held, 1 if one is broken, 2 if the request or the target is at fault.

    kvproof check mypkg.kv:Adapter          judge a cache
    kvproof check mypkg.attn:Kernels        judge paged kernels
    kvproof replay FILE                     run a failure again, step by step
    kvproof shrink FILE                     make a failure shorter
    kvproof open FILE                       see a failure, a trace or a report as a picture
    kvproof record FILE                     run a program and write what was seen as a trace
    kvproof audit FILE                      judge a recorded trace
    kvproof stats FILE                      numbers for an operator from a trace
    kvproof export FILE                     write a trace for Perfetto, or as ITF
    kvproof fuzz mypkg.kv:Adapter           search for hours, on one machine or many
    kvproof exhaust mypkg.kv:Adapter        try every program of a small scope
    kvproof race mypkg.kv:Adapter           call a cache from several threads at once
    kvproof zoo                             judge released caches with known bugs
    kvproof engines                         which engines can be judged
    kvproof fetch vllm==0.33.0              take a release of an engine into the cache folder
    kvproof laws                            what is promised
    kvproof schema                          the JSON Schemas of the files
    kvproof new FILE                        an adapter to start from

Nothing here decides anything: verdicts come from `fuzz`, texts from `fuzz.reports`.
"""

from __future__ import annotations

import errno
import importlib.metadata
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from kvproof import schemas
from kvproof.audit_cli import audit, export, record, stats
from kvproof.check_cli import check
from kvproof.console import Output, Unusable, complain, drop_stdout, give_streams
from kvproof.engines import engines, fetch
from kvproof.exhaust_cli import exhaust
from kvproof.fuzz.campaigns.faults import BadCluster, BadStore, HarnessBroken
from kvproof.fuzz.programs import BadFile
from kvproof.fuzz.reports import lawbook, terminal, wording
from kvproof.fuzz.verdicts import AT_FAULT, HELD
from kvproof.fuzz.waivers import BadWaivers
from kvproof.fuzz_cli import fuzz
from kvproof.impl.checker import AdapterFault
from kvproof.impl.foreign.releases import BadRelease
from kvproof.models.laws import BY_NAME
from kvproof.open_cli import open_picture
from kvproof.options import FILE
from kvproof.races_cli import race
from kvproof.replay_cli import replay, shrink
from kvproof.skeleton import BadPlace, write_skeleton
from kvproof.targets import BadTarget
from kvproof.zoo_cli import zoo

REQUEST_ERRORS: Final = (
    BadTarget,
    BadRelease,
    BadFile,
    BadWaivers,
    BadPlace,
    BadCluster,
    BadStore,
    HarnessBroken,
    Unusable,
    AdapterFault,
)
"""Errors whose text is all that a user needs to see."""

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says where stdout is a file that cannot take more. Files that a command was asked for are told by their names before."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. An error is one sentence on stderr."""
    give_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(args=arguments, prog_name="kvproof", standalone_mode=False)
        sys.stdout.flush()
    except REQUEST_ERRORS as error:
        complain(str(error))
    except click.UsageError as error:
        asked = sys.argv[1:] if arguments is None else arguments
        command = error.ctx.command_path if error.ctx else " ".join(["kvproof", *asked[:1]])  # click forgets it where a value is missing
        complain(f"{wording.sentence(error.format_message())} See `{command} --help`.")
    except click.ClickException as error:
        complain(wording.sentence(error.format_message()))
    except (click.Abort, KeyboardInterrupt):
        complain("The run was interrupted before it could decide anything.")
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        if error.errno not in NO_ROOM:
            return _failed()
        drop_stdout()
        complain(f"What was to be printed cannot be written ({error.strerror}); make room, or send it elsewhere.")
    except Exception:  # noqa: BLE001 -- status 1 would say that a law is broken
        return _failed()
    else:
        return status if isinstance(status, int) else HELD
    return AT_FAULT


def _failed() -> int:
    """Where nothing else is known of an exception, it is a bug of ours."""
    traceback.print_exc()
    complain("kvproof itself failed; please report this with the lines above.")
    return AT_FAULT


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(importlib.metadata.version("kvproof"), message="kvproof %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Prove that a paged KV cache, or the kernels that read and write it, keep their promises.

    A TARGET is module:Class, path/to/file.py:Class, a name that kvproof brings along (production, production-hybrid, engine, kernels,
    kernels-paged, ...), a release of an engine (vllm==0.33.0; see `kvproof engines`), or bug:NAME and kernel-bug:NAME for a seeded bug.

    Exit status: 0 all laws held, 1 a law is broken, 2 the request or the target is at fault.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
    return AT_FAULT


@click.command()
@click.argument("law", required=False)
@click.option("--markdown", is_flag=True, help="Print the page docs/laws.md.")
def laws(law: str | None, *, markdown: bool) -> int:
    """List the laws, or tell all about one LAW."""
    console = Output()
    if markdown:
        terminal.verbatim(console, lawbook.laws_markdown().rstrip("\n"))
    elif law is None:
        lawbook.show_laws(console, narrow=terminal.is_narrow(console))
    elif law in BY_NAME:
        lawbook.show_law(console, BY_NAME[law])
    else:
        near = wording.joined(wording.closest(law, BY_NAME), "or")
        raise Unusable(f"There is no law {law!r}; " + (f"did you mean {near}?" if near else "`kvproof laws` lists them."))
    return HELD


@click.command(short_help="Print the JSON Schemas of the files.")
@click.argument("kind", type=click.Choice(schemas.KINDS), required=False)
def schema(kind: str | None) -> int:
    """Print the JSON Schema of a program, failure, kernel failure, report or trace file; without KIND, an object with all of them."""
    whole = (
        schemas.schema_text(kind)
        if kind
        else msgspec.json.format(msgspec.json.encode({k: schemas.schema(k) for k in schemas.KINDS}), indent=2)
    )
    click.echo(whole.decode().rstrip("\n"))
    return HELD


@click.command()
@click.argument("file", type=FILE)
def new(file: Path) -> int:
    """Write an adapter to start from to FILE. It passes as it is, and never overwrites anything."""
    write_skeleton(file)
    click.echo(f"Wrote {file}. It has a small cache of its own and passes as it is; replace that by yours. Check it with:")
    click.echo(f"    kvproof check {file}:Adapter")
    return HELD


COMMANDS: Final = (
    check,
    replay,
    shrink,
    open_picture,
    record,
    audit,
    stats,
    export,
    fuzz,
    exhaust,
    race,
    zoo,
    engines,
    fetch,
    laws,
    schema,
    new,
)

for _command in COMMANDS:
    cli.add_command(_command)
