"""Commands of `ctld`; `cli.py` defines their arguments. Torch is imported only when a run executes."""


class Refusal(Exception):
    """The command was asked for something that cannot be; the message says what can. Exit code 2."""
