"""`python -m jacnorm` and the command `jacnorm`."""

import sys


def main() -> int:
    try:
        from .lab.cli import main as run
    except ModuleNotFoundError as error:
        print(f"jacnorm: the command line needs {error.name}: pip install 'jacnorm[lab]'", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
