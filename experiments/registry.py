"""Table of the experiments and their costs, which can be listed without torch."""

from typing import NamedTuple


class Entry(NamedTuple):
    """Place of the class of an experiment, with what ``python -m experiments list`` prints of it."""

    module: str
    class_name: str
    # Of one core that nothing else uses; the seconds of a record are those of its machine, which may
    # have been busy.
    cost: str
    title: str


EXPERIMENTS = {
    "antibody-chain": Entry(
        "experiments.antibodies",
        "AntibodyChain",
        "about 20 s",
        "The heavy chain of adalimumab, and what AntiBERTy says of each of its residues.",
    ),
    "antibody-curves": Entry(
        "experiments.antibodies",
        "AntibodyCurves",
        "about 90 min",
        "AntiBERTy's curve on therapeutic antibodies: heavy and light chains, human, mouse, other.",
    ),
    "bert-curve": Entry(
        "experiments.paper.bert",
        "BertCurve",
        "about 10 min",
        "Figure 5, right, in small: the book's BERT before and after training on eight texts.",
    ),
    "curve-shape": Entry(
        "experiments.paper.area",
        "CurveShape",
        "about 2 min",
        "Figure 4: tail, decay and its beginning, at twenty truths.",
    ),
    "derived": Entry(
        "experiments.derived",
        "Derived",
        "about 10 s",
        "Shares of the way to direct training, and other numbers that recorded runs hold.",
    ),
    "digits-training": Entry(
        "experiments.paper.training",
        "DigitsTraining",
        "about 5 min",
        "The digits at 15 %: slow, or headed elsewhere?",
    ),
    "figure-1-center": Entry(
        "experiments.paper.convergence",
        "Figure1Center",
        "about 15 s",
        "Figure 1, center: convergence at D = 50, and its rate.",
    ),
    "figure-1-left": Entry(
        "experiments.paper.convergence",
        "Figure1Left",
        "under 1 s",
        "Figure 1, left: convergence at D = 5.",
    ),
    "figure-1-right": Entry(
        "experiments.paper.convergence",
        "Figure1Right",
        "about 90 s",
        "Figure 1, right: one fixed size, 76 of 512, from 512·P masks and from P.",
    ),
    "figure-2": Entry(
        "experiments.paper.training",
        "Figure2",
        "about 7 s",
        "Figure 2: PPCA trained at every size and at 20 %, on two draws of data.",
    ),
    "figure-3-lower": Entry(
        "experiments.paper.deep_vae",
        "Figure3Lower",
        "about 15 min",
        "Figure 3, lower: a deep VAE trained by the ELBO and by masks.",
    ),
    "figure-3-upper": Entry(
        "experiments.paper.linear_vae",
        "Figure3Upper",
        "about 50 min",
        "Figure 3, upper: Bernoulli linear VAE by the ELBO and by masks.",
    ),
    "figure-4": Entry(
        "experiments.paper.area",
        "Figure4",
        "about 15 s",
        "Figure 4: area under the mask-rate curve at D = 200.",
    ),
    "figure-5-left": Entry(
        "experiments.paper.training",
        "Figure5Left",
        "about 5 s",
        "Figure 5, left: the mask-rate curve during training.",
    ),
    "figure-6": Entry(
        "experiments.paper.vit_mae",
        "Figure6",
        "about 10 min",
        "Figure 6: curves of masked autoencoders on three image sets.",
    ),
    "figure-6-pretrained": Entry(
        "experiments.paper.vit_mae",
        "PreTrained",
        "GPU advised",
        "Figure 6 with the paper's network: needs the weights of vit-mae-base.",
    ),
    "fixed-sizes": Entry(
        "experiments.paper.training",
        "FixedSizes",
        "about 5 min",
        "Maxima of the masked objective at fixed sizes, by truth and start scale.",
    ),
    "identity": Entry(
        "experiments.paper.identity",
        "Identity",
        "about 5 s",
        "Equations 1-7, Proposition 1 and Appendix A, each as printed.",
    ),
    "known-language": Entry(
        "experiments.known_language",
        "KnownLanguage",
        "about 25 min",
        "A BERT on a language of known likelihood: laws of the size, and what closes the gap.",
    ),
    "masking-rates": Entry(
        "experiments.masking_rates",
        "MaskingRates",
        "about 2 min",
        "Which masking rate: crossovers, few sizes, laws of sizes.",
    ),
    "patches": Entry(
        "experiments.paper.vit_mae",
        "Patches",
        "seconds",
        "Proposition 1 with patches as coordinates, by enumeration.",
    ),
    "published-curves": Entry(
        "experiments.paper.table_2",
        "PublishedCurves",
        "seconds",
        "Table 2 and Figure 5, right, from the authors' stored curves of BERT-base.",
    ),
    "recursion": Entry(
        "experiments.recursion",
        "Recursion",
        "about 40 min",
        "The recursion of Figure 3, lower, choice by choice, and an encoder of x_R.",
    ),
    "self-contradiction": Entry(
        "experiments.self_contradiction",
        "SelfContradiction",
        "about 40 min",
        "How much of a network's error is self-contradiction: area, mixture and exact log p.",
    ),
    "six-sentences": Entry(
        "experiments.six_sentences",
        "SixSentences",
        "about 15 min",
        "Six sentences under the small BERT while it learns, and under the one that the book carries.",
    ),
    "small-bert": Entry(
        "experiments.small_bert",
        "SmallBert",
        "about 45 min",
        "The book's own BERT on classic books.",
    ),
    "table-1": Entry(
        "experiments.paper.convergence",
        "Table1",
        "about 10 s",
        "Table 1: LML and its estimate from P = 1, 10, 100 masks per size.",
    ),
    "table-2": Entry(
        "experiments.paper.table_2",
        "Table2",
        "about 20 min",
        "Table 2, first row: area of a randomly initialized BERT-base, twelve initializations.",
    ),
    "table-2-pretrained": Entry(
        "experiments.paper.bert",
        "PreTrained",
        "GPU advised",
        "Table 2, second row, and Figure 5, right: needs the weights of bert-base-uncased.",
    ),
    "text-rates": Entry(
        "experiments.paper.bert",
        "TextRates",
        "about 6 min",
        "Which masking rate? The book's small BERT on held-out books and Wikipedia.",
    ),
    "unbiased": Entry(
        "experiments.paper.convergence",
        "Unbiased",
        "about 10 s",
        "Bias at D = 50 of one mask per size and of one mask of a random size.",
    ),
    "whole-tables": Entry(
        "experiments.whole_tables",
        "WholeTables",
        "about 40 min",
        "The evidence of whole tables by a network: two priors, orders of rows, tables from elsewhere.",
    ),
}
