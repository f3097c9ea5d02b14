"""The entry point: an interrupt while the command line is imported ends it as one later on does."""

import sys


def main() -> None:
    try:
        from autoshard.cli import main as run

        run()
    except KeyboardInterrupt:
        print("autoshard: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
