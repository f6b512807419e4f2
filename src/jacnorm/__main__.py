"""`python -m jacnorm` and the command `jacnorm`."""

import sys

from . import __version__


def main() -> int:
    if sys.argv[1:] == ["--version"]:  # this also works if the packages of the command line are missing
        print(f"jacnorm {__version__}")
        return 0
    try:
        from .lab.cli import main as run
        from .lab.cli import make_parser

        make_parser(sys.argv[1:])  # this loads the named command
    except ModuleNotFoundError as error:
        if error.name == "fcntl":  # locks on files
            needs = "Linux, macOS or WSL; the library does not"
        else:
            needs = f"{error.name}: pip install 'jacnorm[lab]'"
        print(f"jacnorm: the command line needs {needs}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while PyTorch is loaded
        print("\njacnorm: stopped", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
