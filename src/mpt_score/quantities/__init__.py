"""What is asked about texts: which rows, and how their terms are summed to a number with its error.

* ``estimate``: the log-score of rows from few masks, with an honest error.
* ``sentence_scores``: log-scores and pseudo-log-likelihoods of texts.
* ``token_scores``: the surprisal of each token and word.
* ``pair_scores``: which of two texts is the likelier.
* ``answer_scores``: which answer follows a question.
* ``design``: at which rates or sizes texts are masked.
* ``sentence_curves``: the mask-rate curve of texts.
* ``contrasts``: differences of conditions, item by item.
* ``means``: means and ratios over texts, with their errors.
"""
