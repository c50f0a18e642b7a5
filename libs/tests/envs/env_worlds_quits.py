"""A script, not a module: importing it ends the program."""

import sys

sys.exit(3)
