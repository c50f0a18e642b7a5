"""`python -m tandem_controller RECIPE [key=value ...]` is `tandem train`."""

import sys

from tandem.cli import main

sys.argv[1:1] = ["train"]
main()
