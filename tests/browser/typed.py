"""Two hundred sentences such as somebody may type, of all sorts, from 1 to 60 pieces."""

from __future__ import annotations

import random

from mpt_score import texts

BY_HAND = (
    "I beg your pardon.",
    "She was alone in the house.",
    "she were alone in the house",
    "THE END",
    "Hello!",
    "a",
    "?!",
    "My phone's battery is dead; can I borrow your charger?",
    "The iPhone-15 costs $999.99 (incl. 19% VAT)...",
    "don't won't can't shan't it's o'clock 'tis",
    "“Curly quotes”, ‘single ones’ – and dashes — too…",
    "naïve café, déjà vu; Ångström, Łódź, İstanbul, Straße",
    "cafe\u0301 with a combining accent",
    "x\u00a0y\u2003z\tq\nnew line\r\nand another",
    "zero\u200bwidth\u00adand\ufeffmarks\u0007",
    "東京 is 漢字 and ひらがな",
    "你好，世界。",
    "Привет, мир",
    "αβγ Ω ΣΊΣΥΦΟΣ",
    "שלום עולם, she said",
    "مرحبا she said",
    "I ❤️ you 😀👍🏽 very 👨‍👩‍👧 much",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "a" * 100 + " is a hundred letters",
    "a" * 101 + " is one more",
    "www.example.org/path?query=1#s=two and name@example.org",
    "<b>bold</b> & <script>alert(1)</script>",
    "1,234.5 + 6 = 1240.5; 50% of ½ is ¼",
    "end. of. many. short. sentences. end.",
    "I I I I I I I I",
    "the the the the the the the the the the the the",
    "[brackets] {braces} [mask] [unk] _under_ ~tilde~ `tick` ^hat^ |bar|",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife.",
    "When I wrote the following pages, or rather the bulk of them, I lived alone, in the woods, a mile "
    "from any neighbor, in a house which I had built myself, on the shore of Walden Pond.",
    "Transformers are feed-forward neural networks with self-attention.",
    "Kubernetes pods crashed at 03:14 UTC",
    "ﬁne ligatures ＦＵＬＬ width Ⅷ ① ㎏",
    "ǅ ŉ ẞ ſ K Å",
    "각 한국어 글자",
    "हिन्दी में लिखा",
)
SIGNS = (
    " ",
    " ",
    " ",
    " ",
    ", ",
    ". ",
    "; ",
    "-",
    "'",
    " \u2014 ",
    "\u00e9 ",
    " \u6f22 ",
    "! ",
    " \U0001f600 ",
)


def sentences(tokenizer) -> list[str]:
    """200: those by hand, the package's own, and words and signs at random, of 1 to 60 pieces."""
    draw = random.Random(60)
    out = [*BY_HAND, *texts.sentences("written").first]
    pieces = [piece for piece in sorted(tokenizer.get_vocab()) if not piece.startswith("[")]
    for number in range(len(out), 200):
        wanted, text = 1 + number % 60, ""
        while len(tokenizer.tokenize(text)) < wanted:
            word = draw.choice(pieces).removeprefix("##")
            text += draw.choice([str.lower, str.capitalize, str.upper])(word) + draw.choice(SIGNS)
        while len(tokenizer.tokenize(text)) > 60:
            text = text[:-1]
        out.append(text)
    return out
