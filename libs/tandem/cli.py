"""The `tandem` command. Installed services add their subcommands by the entry-point group `tandem.commands`."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from tandem.types import TandemError, exit_code


def build_app() -> typer.Typer:
    """The root command with every installed subcommand; a Typer is a group, a function a single command."""
    app = typer.Typer(name="tandem", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None:
        """Post-train vision-language agents with reinforcement learning."""

    entries = sorted(entry_points(group="tandem.commands"), key=lambda entry: entry.name)
    asked = [entry for entry in entries if entry.name in sys.argv[1:2]]
    for entry in asked or entries:  # one command must not wait for the imports of the others
        command = entry.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name, **getattr(command, "typer_settings", {}))(command)
    return app


def main() -> None:
    """Run the command line. A mistake of the user's is one line on stderr and exit code 2, another known failure 1."""
    try:
        build_app()()
    except TandemError as problem:
        sys.stderr.write(f"tandem: {problem}\n")
        sys.exit(exit_code(problem))


if __name__ == "__main__":
    main()
