"""What is asked of a model: rows of tokens, what of them is hidden, and many of them together.

* ``requests``: a row of tokens with the places that are scored, which of these are hidden, and of which
  log q is wanted.
* ``reading``: texts as rows, or as windows and blocks, each a row of its own.
* ``words``: where the tokens of a text stand in it, and which of them are one word.
* ``scheduler``: requests about many rows in batches of like shape, equal masked rows once.
"""
