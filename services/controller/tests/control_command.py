"""The four commands as a program, also where their entry points are not installed."""

import typer

from tandem import cli
from tandem_controller import control_cli, top

if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    for command in (control_cli.status, control_cli.scale, control_cli.drain, top.top):
        app.command()(command)
    cli.build_app = lambda: app
    cli.main()
