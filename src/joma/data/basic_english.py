"""The basic-english tokenisation that the published WikiText curves use.

A fresh implementation of its published rules: lower case; `. , ( ) ! ? '` are tokens of their own;
double quotes vanish, joining what they parted; `;`, `:` and `<br />` become spaces; the rest is
split at white space.
"""

# Quotes go before <br /> is looked for, semicolons after: the published order, kept to the letter.
_FIRST = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {'"': ""})
_LAST = str.maketrans(";:", "  ")


def tokenise(text: str) -> list[str]:
    """The tokens of a line or of a whole text; line ends are only white space.

    WikiText's `@-@` and `<unk>` stay whole, but its `@.@` falls into three tokens.

    Example:
        >>> tokenise("The Man's 2 @.@ 5 <unk>; end.")
        ['the', 'man', "'", 's', '2', '@', '.', '@', '5', '<unk>', 'end', '.']
    """
    marked = text.lower().translate(_FIRST).replace("<br />", " ")
    return marked.translate(_LAST).split()
