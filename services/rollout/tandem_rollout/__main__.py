"""python -m tandem_rollout"""

import sys

from tandem_rollout.cli import main

if __name__ == "__main__":  # vLLM's own process imports the main module again
    sys.exit(main())
