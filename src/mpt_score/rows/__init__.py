"""What is asked of a network: rows of tokens, what of them is hidden, and many of them together.

* ``parts``: windows of a text that is too long, and blocks of one that is read from left to right.
* ``row``: a row of tokens with the places that are scored, and what its random orders follow from.
* ``reading``: texts as rows.
* ``words``: where the tokens of a text stand in it, and which of them are one word.
* ``requests``: which places of a row are hidden, and of which of them log q is wanted.
* ``scheduler``: requests about many rows in batches of like shape, equal rows once.
"""
