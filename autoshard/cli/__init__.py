"""The command line: reads requests, calls the pipeline, prints. Every command imports what it needs when it runs, so --help is quick."""

import errno
import gc
import sys

import click

from autoshard.cli.calibrating import calibrate
from autoshard.cli.checking import check, verify
from autoshard.cli.compiling import compile_command
from autoshard.cli.costing import cost
from autoshard.cli.explaining import explain, why
from autoshard.cli.hardware import hardware
from autoshard.cli.planning import plan, problem
from autoshard.cli.sensitivity import sensitivity
from autoshard.cli.solving import solve
from autoshard.cli.streams import drop_output, prepare_streams, unwritable
from autoshard.errors import AutoshardError
from costmodels import HardwareError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="autoshard", prog_name="autoshard")
def cli() -> None:
    """Find the cheapest legal sharding of every value of a StableHLO module on a mesh, and write the module back."""


for command in (
    plan,
    cost,
    explain,
    why,
    sensitivity,
    check,
    verify,
    compile_command,
    problem,
    solve,
    hardware,
    calibrate,
):
    cli.add_command(command)

_COLLECTED_FROM = 1_000_000
"""Objects between two looks for cycles: what a plan is made of lives until it is written, and each look goes through all of it."""

_OF_STREAMS = frozenset({errno.EBADF, errno.EFBIG, errno.EIO, errno.ENOSPC})
"""What writing to a standard stream fails with."""


def main() -> None:
    """0 done, 1 no plan or a check that failed, 2 a request that cannot be honoured, or whose answer cannot be written, 130 interrupted."""
    gc.set_threshold(_COLLECTED_FROM)
    try:
        prepare_streams()
        cli(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("autoshard: interrupted", err=True)
        sys.exit(130)
    except (AutoshardError, HardwareError) as error:
        click.echo(f"autoshard: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_STREAMS:
            raise
        drop_output()
        click.echo(f"autoshard: {unwritable(error.strerror or str(error))}", err=True)
        sys.exit(2)
