"""The order of the gallery's examples: from what a newcomer does first to what few need."""

ORDER = ["swap_sgd", "ensemble_images", "ensemble_text", "regression", "out_of_distribution", "bad_minima", "posterior"]
ORDER += ["multimodal", "own_tempering", "resume", "ddp"]


class ReadingOrder:
    """A key to sort file names by, as sphinx-gallery wants it."""

    def __init__(self, src_dir):
        self.src_dir = src_dir

    def __call__(self, filename):
        return ORDER.index(filename.removeprefix("plot_").removesuffix(".py"))
