"""Everything, one after the other: see README.md."""

import time
from collections.abc import Callable

import torch

from benchmarks import (
    chains,
    document,
    draws,
    end_to_end,
    generators,
    loop,
    memory,
    methods,
    noise,
    ranks,
    steps,
    stored,
)

RUNS: dict[str, Callable[..., stored.Result]] = {
    "steps": steps.run,
    "end_to_end": end_to_end.run,
    "noise": noise.run,
    "generators": generators.run,
    "memory": memory.run,
    "loop": loop.run,
    "chains": chains.run,
    "draws": draws.run,
    "ranks": ranks.run,
}


def main() -> None:
    parser = stored.parser("Time, memory and noise of the optimizers, side by side with SGD.")
    names = [*RUNS, "methods"]
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(names)}; all, if left out")
    parser.add_argument("--document", action="store_true", help="measure nothing, bring README.md up to date")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    torch.set_num_threads(arguments.threads)
    start = time.monotonic()
    # The table of methods is in another document, for which a short run is too rough.
    chosen = arguments.names or (names if arguments.effort >= 1 else list(RUNS))
    for name in [] if arguments.document else chosen:
        if name == "methods":
            methods.run()
            stored.say("docs/methods.md has these by hand: python benchmarks/methods.py --document")
            continue
        given = f"python -m benchmarks {name}{stored.options_of(arguments)}"
        stored.finish(name, RUNS[name](effort=arguments.effort, command=given), document.TABLES[name])
    document.update()
    stored.say(f"{time.monotonic() - start:.0f} s; benchmarks/README.md has the tables")


if __name__ == "__main__":
    main()
