"""Documents: texts with markup, whose translation keeps the markup.

A document is read as a sequence of verbatim markup and of blocks (`MarkedText`): paragraphs, cells, subtitles. The
text of a block is translated without its inline tags, which the word alignment then places in the translation.
"""
