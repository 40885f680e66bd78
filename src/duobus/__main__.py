"""``python -m duobus``: the same as the command ``duobus``."""

from duobus.cli.main import main

if __name__ == "__main__":
    main()
