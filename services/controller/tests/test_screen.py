"""The table on a real terminal: it tears nothing, and leaves nothing behind."""

from __future__ import annotations

import live_program
from terminal import Terminal


def test_lines_go_by_above_the_table_and_ctrl_c_leaves_the_terminal_whole() -> None:
    with Terminal(["live_program.py"], width=100, height=16) as terminal:
        terminal.until(lambda it: "all is said" in it.lines and it.lines[-1].endswith(f"line 29 {live_program.WIDE}"))
        said = [line.partition("controller: ")[2] for line in terminal.lines if " W controller: " in line]
        assert said == [f"line {number} {live_program.WIDE}" for number in range(live_program.LINES)]
        assert terminal.lines.count("all is said") == 1
        assert sum(line.startswith("run ") for line in terminal.lines) == 1, "one table, drawn over itself"
        assert terminal.cursor_shown, "whatever ends the program now"
        terminal.resize(50, 16)
        terminal.until(lambda it: any(line.endswith("…") for line in it.lines))
        terminal.signal()
        assert terminal.wait() == 0
        assert terminal.lines[-2:] == ["stopping after this step", "the end"]
        assert not [line for line in terminal.lines if line.startswith(("run ", "solved ", "problems "))]
        assert terminal.cursor_shown and terminal.screen.cursor.x == 0


def test_a_terminal_that_cannot_be_drawn_on_gets_lines_alone() -> None:
    with Terminal(["live_program.py"], width=100, TERM="dumb") as terminal:
        terminal.until(lambda it: "all is said" in it.lines)
        terminal.signal()
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw and "run " not in terminal.raw.decode()
