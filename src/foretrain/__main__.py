"""``python -m foretrain`` is the command ``foretrain``."""

import sys

from foretrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
