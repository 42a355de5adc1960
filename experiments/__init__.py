"""The runs behind the book's verdicts, one module a figure or table of the paper.

In a checkout, ``python -m experiments list`` shows them, ``run NAME`` runs one and stores what it finds,
``compare NAME`` prints measured beside published. What a run recorded is read by ``mpt_lml.load``.

The modules, in the order in which a stranger should read them: ``experiment`` (an experiment is settings
and a ``measure``), ``paper.convergence`` (Table 1, the simplest ones), ``registry`` (their names),
``recording`` (a run from command to file) and ``ledger`` (a rule makes a verdict of a number).
"""
