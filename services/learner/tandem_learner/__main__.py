"""python -m tandem_learner"""

import sys

from tandem_learner.main import main

if __name__ == "__main__":
    sys.exit(main())
