"""`python -m twinbus` is the command line."""

from twinbus.cli.main import main

if __name__ == "__main__":
    main()
