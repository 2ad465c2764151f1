"""What the commands of `ctld` do; `cli.py` says how they are called. No torch until a run executes."""


class Refusal(Exception):
    """The command was asked for something that cannot be; the message says what can. Exit code 2."""
