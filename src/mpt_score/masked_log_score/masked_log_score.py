"""A metric for ``evaluate``: log-scores of texts under a masked language model, with their errors.

It is loaded by its folder, which the package carries:

    from importlib.resources import files
    import evaluate
    metric = evaluate.load(str(files("mpt_score") / "masked_log_score"))
    metric.compute(predictions=texts, model_id="google-bert/bert-base-uncased")
"""

from typing import Any

import datasets
import evaluate

import mpt_score
from mpt_score.quantities.means import mean_estimate

_DESCRIPTION = """
Log-scores of texts under a masked language model: the mean over orders of the log-probability of a
text that is unmasked token by token (the area under the mask-rate curve), with its standard error.
exp(-log-score per token) plays the role of a perplexity. It is an upper bound on the perplexity of a
mixture of orders, not the perplexity of one distribution, and it is not the exponential of a
pseudo-log-likelihood.
"""
_INPUTS = """
Args:
    predictions (list of str): texts.
    model_id (str): a folder, a name on the hub, or module:function; it is loaded in each call. Or
        what mpt_score.load made of one, which is taken as it is.
    tokenizer (str): folder or name; by default the model's own.
    revision (str): commit of a name on the hub; by default the newest.
    device (str): "auto", "cpu", "cuda" or "mps".
    seed (int): of masks and orders.

Returns:
    log_scores: nats a text.
    log_scores_per_token: nats a token, of each text.
    standard_errors_per_token: of these, over masks or orders; 0 where all are in them.
    num_tokens: scored, of each text.
    perplexities: exp(-log score per token), of each text.
    mean_perplexity: their mean.
    mean_perplexity_error: its standard error over texts; None for one text.
    bits_per_byte: of all texts together.
    bits_per_byte_error: its standard error over texts; None for one text.
    model: what was loaded, with its commit.
"""
_CITATION = """
@inproceedings{moreno2023masked,
  title = {On Masked Pre-training and the Marginal Likelihood},
  author = {Moreno-Mu{\\~n}oz, Pablo and Garcia Recasens, Pol and Hauberg, S{\\o}ren},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {36},
  year = {2023}
}
"""


class MaskedLogScore(evaluate.Metric):
    """Log-scores per token of texts, in the form of ``evaluate``."""

    def _info(self) -> Any:
        return evaluate.MetricInfo(
            module_type="metric",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://mpt-lml.github.io/mpt-lml/book/scoring-guide.html"],
        )

    def _compute(
        self,
        predictions: list[str],
        model_id: Any,
        tokenizer: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        seed: int = 0,
    ) -> dict[str, Any]:
        scorer = mpt_score.load(model_id, tokenizer, revision=revision, device=device)
        scores = mpt_score.sentences(scorer, predictions, seed=seed)
        per_token = scores.log_score / scores.num_tokens
        errors = scores.standard_error / scores.num_tokens
        perplexities = (-per_token).exp()
        mean_perplexity = mean_estimate(perplexities, "")
        bits = scores.mean("byte")
        has_errors = len(perplexities) > 1
        return {
            "log_scores": scores.log_score.tolist(),
            "log_scores_per_token": per_token.tolist(),
            "standard_errors_per_token": errors.tolist(),
            "num_tokens": scores.num_tokens.tolist(),
            "perplexities": perplexities.tolist(),
            "mean_perplexity": float(mean_perplexity),
            "mean_perplexity_error": mean_perplexity.standard_error if has_errors else None,
            "bits_per_byte": float(bits),
            "bits_per_byte_error": bits.standard_error if has_errors else None,
            "model": scorer.name,
        }
