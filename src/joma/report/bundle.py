"""Edge file for joma[report]: the drawing library that a page carries with it."""

from joma._core.extras import extra

with extra("report", packages=("plotly",), purpose="A report"):
    from plotly.offline import get_plotlyjs


def script() -> str:
    """plotly.js as text, to be put into a page."""
    found: str = get_plotlyjs()
    return found
