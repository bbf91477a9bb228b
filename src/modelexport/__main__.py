"""Start the command line: `modelexport` and `python -m modelexport`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends as it does later."""
    try:
        from modelexport.cli.main import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
