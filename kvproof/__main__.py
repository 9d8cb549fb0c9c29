"""`python -m kvproof` is the command `kvproof`."""

import sys

from kvproof.entry import main

sys.exit(main())
