"""`python -m ctld_lab` is `ctld`."""

from ctld_lab.cli import main

if __name__ == "__main__":
    main()
