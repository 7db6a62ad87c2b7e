"""`python -m gdr`: the gdr command; `python -m gdr libpath`: the path of libgdrapi.so.2."""

import os
import sys

from gdr._command import command_path, library_path


def main() -> None:
    """Replaces this process by the gdr command."""
    if sys.argv[1:] == ["libpath"]:
        print(library_path())
        return
    command = command_path()
    os.execv(command, ["gdr", *sys.argv[1:]])


if __name__ == "__main__":
    main()
