"""The command line, over the same services as the dashboard: `python -m app --help`."""

import typer

from app import data_commands, forecast_commands, model_commands, run_commands
from app.terminal import Commands

cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kronos Workbench without a browser.",
)
for part in (data_commands, model_commands, run_commands, forecast_commands):
    cli.add_typer(part.cli)


def main() -> None:
    """Entry point of `python -m app`."""
    cli(prog_name="python -m app")


if __name__ == "__main__":
    main()
