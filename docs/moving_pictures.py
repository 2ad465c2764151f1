"""Figures of the gallery: animations become GIFs, which play by themselves and need no scripts of other people's servers."""

from matplotlib import pyplot
from matplotlib.animation import FuncAnimation, PillowWriter
from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper


def scraper(block, block_vars, gallery_conf, **options):
    """Saves what a block of an example has drawn, and returns how a page shows it."""
    pages = []
    for drawn in block_vars["example_globals"].values():
        if isinstance(drawn, FuncAnimation) and pyplot.fignum_exists(drawn._fig.number):
            path = next(block_vars["image_path_iterator"]).replace(".png", ".gif")
            drawn.save(path, writer=PillowWriter(fps=8))
            pyplot.close(drawn._fig)
            pages.append(figure_rst([path], gallery_conf["src_dir"]))
    return "".join(pages) + matplotlib_scraper(block, block_vars, gallery_conf, **options)


def _get_sg_image_scraper():
    """What sphinx-gallery asks a module for whose name is in its list."""
    return scraper
