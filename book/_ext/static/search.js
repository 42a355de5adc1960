// The search of the book: whole words (in any of their forms), the page first that is about them.
// It runs on the page of the search alone, on `searchPages` (search_pages.py), also from a folder.
(function () {
  "use strict";
  const results = document.getElementById("search-results");
  if (!results || !window.searchPages) return;

  // How much a word counts where it stands; a page's text is weighed as in BM25.
  const TITLE = 7, ABOUT = 4.5, HEADING = 2.5, NAME = 6, TEXT = 1, PHRASE = 4, BEST = 0.6, LOOSE = 0.1;
  const PART = 0.5; // a page that lacks some of the words
  // Chapters teach, notes go on from them, and the rest is for looking things up.
  const RARE = { "book/note-": 0.8, "book/bibliography": 0.35, "book/map": 0.6,
    "book/errata": 0.7, "book/status": 0.6, "book/api": 0.35,
    // these name much and explain little
    "book/glossary": 0.35, "book/index": 0.4, "book/results": 0.5, "book/after-one-hour": 0.5 };
  const GLOSSARY = "book/glossary.html";
  // What is X, what does X mean, define X.
  const MEANING = ["what(?:['’]?s|\\s+(?:is|are))\\s+(.+)", "what\\s+do(?:es)?\\s+(.+)\\s+mean\\W*",
    "(?:define|(?:definition|meaning)\\s+of)\\s+(.+)"].map((form) => new RegExp(`^\\s*${form}$`, "i"));
  const COMMON = "a about an and are as at be between by can could do does for from get has have how i if in " +
    "is it its many me more much my need not of on or should than that the there this to under was we " +
    "what when which who why will with would you your";
  const MOST = 30, EXCERPT = 220, ENOUGH = 4;

  // One thing and its names in the field: the first is found where another stands, and back.
  const ONE_THING = ["pll: pseudo-log-likelihood", "pppl: pseudo-perplexity", "ppl: perplexity",
    "lm: language model", "mlm: masked language model", "llm: large language model",
    "hmm: hidden Markov model", "pca: principal component analysis",
    "ppca: probabilistic PCA, probabilistic principal component analysis",
    "vae: variational autoencoder", "mae: masked autoencoder", "elbo: evidence lower bound",
    "iwae: importance weighted autoencoder", "kl: Kullback-Leibler", "nll: negative log-likelihood",
    "loo: leave-one-out", "cv: cross-validation", "mle: maximum likelihood", "mc: Monte Carlo",
    "mask rate: mask ratio", "erratum: errata, mistake, misprint, typo"];

  // Masks, masked and masking are one word; margin and marginal, which a stemmer would join, are two.
  const stems = new Map();
  function stem(word) {
    if (!stems.has(word)) stems.set(word, stemmed(word));
    return stems.get(word);
  }
  function stemmed(word) {
    if (word.length < 4 || /[\d_]/.test(word)) return word;
    let stem = word;
    if (/[^aeiou]ies$/.test(stem)) stem = stem.slice(0, -3) + "y";
    else if (/(?:[sxz]|ch|sh)es$/.test(stem)) stem = stem.slice(0, -2);
    else if (/[^suiy]s$/.test(stem) && !/ias$/.test(stem)) stem = stem.slice(0, -1);
    const cut = /^(.*[aeiouy].*)(?:ed|ing)$/.exec(stem);
    if (cut && cut[1].length > 2) stem = cut[1].replace(/([bdgmnprt])\1$/, "$1");
    return stem.length > 4 ? stem.replace(/e$/, "") : stem;
  }

  // 15 %, 15% and 15 percent are one word, and 15 is another: a chapter has that number.
  const WORD = /\d+(?:\s?%|\sper\s?cent\b)|[\p{L}\p{N}_]+/giu;
  const read = new Map(), classes = new Set();
  function asStem(word) {
    let found = read.get(word);
    if (found === undefined) {
      found = stem(word.toLowerCase().replace(/^(\d+)\s?(?:%|per\s?cent)$/, "$1%"));
      if (/\p{Ll}\p{Lu}/u.test(word)) classes.add(found); // FixedRate is not a fixed rate
      read.set(word, found);
    }
    return found;
  }
  const lists = new Map();
  function stemsOf(text) {
    if (!lists.has(text)) lists.set(text, (text.match(WORD) || []).map(asStem));
    return lists.get(text);
  }

  // Pseudo-likelihood and pseudolikelihood are one word, in the form that the book has more often.
  const texts = window.searchPages.flatMap((page) => page.sections)
    .flatMap(([, heading, text]) => [stemsOf(heading), stemsOf(text)]);
  const single = counts(texts.flat());
  function splits(word) {
    const found = [];
    for (let k = 3; k <= word.length - 3 && !classes.has(word); k += 1) {
      const pair = [word.slice(0, k), word.slice(k)];
      if (pair.every((part) => single.has(part))) found.push(pair);
    }
    return found;
  }
  const pairs = new Map(); // first word: second word: how often side by side, and the joint word
  function addPair(a, b) {
    if (!pairs.has(a)) pairs.set(a, new Map());
    pairs.get(a).set(b, { count: 0, joint: a + b });
  }
  for (const joint of single.keys()) for (const [a, b] of splits(joint)) addPair(a, b);
  for (const list of texts) {
    list.forEach((word, k) => {
      const pair = pairs.has(word) && pairs.get(word).get(list[k + 1]);
      if (pair) pair.count += 1;
    });
  }
  const apart = new Map();
  for (const [a, seconds] of pairs) {
    for (const [b, { count, joint }] of seconds) if (count > single.get(joint)) apart.set(joint, [a, b]);
  }
  const partsOf = (word) => apart.get(word) || [word];
  function jointOf(a, b) {
    const pair = pairs.has(a) && pairs.get(a).get(b);
    return pair && pair.count < single.get(pair.joint) ? pair.joint : "";
  }
  function oneSpelling(list) {
    const found = [];
    for (let k = 0; k < list.length; k += 1) {
      const joint = jointOf(list[k], list[k + 1]);
      if (joint) {
        found.push(joint);
        k += 1;
      } else if (apart.has(list[k])) found.push(...apart.get(list[k]));
      else found.push(list[k]);
    }
    return found;
  }
  /** Words of a query that the book never writes: those of which they are parts, or made. */
  function learn(word, k, list) {
    if (single.has(word) || apart.has(word)) return;
    const pair = splits(word).find((parts) => texts.some((text) => together(text, parts)));
    if (pair) apart.set(word, pair);
    if (k && single.has(list[k - 1] + word)) addPair(list[k - 1], word);
    if (k + 1 < list.length && single.has(word + list[k + 1])) addPair(word, list[k + 1]);
  }

  const spelled = (text) => oneSpelling(stemsOf(text));
  const names = ONE_THING.flatMap((line) => {
    const [name, others] = line.split(": ");
    return others.split(", ").map((other) => ({ name: spelled(name), other: spelled(other) }));
  }).sort((a, b) => b.other.length - a.other.length);
  const byLast = new Map();
  for (const each of names) {
    const last = each.other[each.other.length - 1];
    byLast.set(last, [...(byLast.get(last) || []), each]);
  }
  const startsAt = (list, k, words) => words.every((word, i) => list[k + i] === word);

  /** The words of the book's text, and after each thing's other names the first one. */
  function terms(text) {
    const list = spelled(text);
    const found = [];
    list.forEach((word, k) => {
      found.push(word);
      for (const { name, other } of byLast.get(word) || []) {
        if (startsAt(list, k + 1 - other.length, other)) found.push(...name);
      }
    });
    return found;
  }
  /** The words of a query, each thing by its first name, and the longer names that were typed. */
  function wordsAsked(text) {
    stemsOf(text).forEach(learn);
    const list = spelled(text), all = [], typed = new Map();
    for (let k = 0; k < list.length;) {
      const known = names.find(({ other }) => startsAt(list, k, other));
      all.push(...(known ? known.name : [list[k]]));
      if (known && known.name.length === 1) typed.set(known.name[0], known.other);
      k += known ? known.other.length : 1;
    }
    return { all, typed };
  }
  const common = new Set(stemsOf(COMMON));

  function counts(list) {
    const found = new Map();
    for (const term of list) found.set(term, (found.get(term) || 0) + 1);
    return found;
  }

  /** Names of the package by what somebody types: in full, or the last part of the shortest. */
  function namesOf(names) {
    const known = new Map();
    for (const full of [...names].sort((a, b) => b.length - a.length)) {
      known.set(full.toLowerCase(), full);
      const last = full.split(".").pop().toLowerCase();
      if (last.includes("_")) known.set(last, full); // a plain word is asked for as a word
    }
    return known;
  }

  const pages = window.searchPages.map((page) => {
    const sections = page.sections.map(([id, heading, text]) => {
      const list = terms(text);
      return { id, heading, text, list, headingList: terms(heading), counts: counts(list) };
    });
    const name = page.address.replace(/\.html$/, "");
    const weight = Object.entries(RARE).find(([start]) => name.startsWith(start));
    return {
      ...page, sections,
      weight: weight ? weight[1] : 1,
      titleList: terms(page.title.replace(/^[\d.½]+/, "")),
      aboutList: terms(`${page.about} ${name.replace(/^.*\//, "")}`),
      headings: new Set(sections.slice(1).flatMap((section) => section.headingList)),
      known: namesOf(page.names),
      counts: counts(sections.flatMap((section) => section.list)),
      length: sections.reduce((sum, section) => sum + section.list.length, 0)
    };
  });
  // The glossary's sections are its entries, each with all its names.
  const glossary = pages.find((page) => page.address === GLOSSARY);
  const telling = (list) => list.filter((word) => !common.has(word));
  const entries = (glossary ? glossary.sections.slice(1) : []).flatMap((section) =>
    section.heading.split(", ").map((name) => ({ section, words: telling(wordsAsked(name).all) })));
  /** What a query asks the meaning of, if the glossary says it: nat of "what is a nat?". */
  function meaning(text) {
    const form = MEANING.map((each) => each.exec(text)).find(Boolean);
    const words = form ? telling(wordsAsked(form[1]).all) : [];
    const fits = entries.filter((entry) => words.length && startsAt(entry.words, 0, words))
      .sort((a, b) => a.words.length - b.words.length);
    return fits.length ? { thing: form[1], entry: fits[0].section } : {};
  }
  const meanLength = pages.reduce((sum, page) => sum + page.length, 0) / pages.length;

  function has(page, term) {
    return page.counts.has(term) || page.titleList.includes(term) || page.headings.has(term) ||
      page.aboutList.includes(term);
  }
  function rarity(term) {
    const number = pages.filter((page) => has(page, term)).length;
    return Math.log(1 + (pages.length - number + 0.5) / (number + 0.5));
  }
  function saturated(count, length) {
    return (2.2 * count) / (count + 1.2 * (0.25 + (0.75 * length) / meanLength));
  }
  /** How often the terms stand side by side in a list. */
  function together(list, wanted) {
    if (wanted.length < 2) return 0;
    let times = 0;
    for (let k = list.indexOf(wanted[0]); k >= 0; k = list.indexOf(wanted[0], k + 1)) {
      if (wanted.every((term, i) => list[k + i] === term)) times += 1;
    }
    return times;
  }

  function sectionScore(section, wanted, weights) {
    let score = 0;
    wanted.forEach((term, k) => {
      const count = section.counts.get(term) || 0;
      score += weights[k] * (HEADING * section.headingList.includes(term) + count / (count + 1.5));
    });
    const phrases = together(section.list, wanted);
    return score + PHRASE * Boolean(together(section.headingList, wanted)) + phrases / (phrases + 1);
  }

  function pageScore(page, wanted, weights, query, all) {
    let score = BEST * Math.max(0, ...page.sections.map((s) => sectionScore(s, wanted, weights)));
    wanted.forEach((term, k) => {
      const inText = saturated(page.counts.get(term) || 0, page.length);
      score += weights[k] * (TEXT * inText + TITLE * page.titleList.includes(term) +
        ABOUT * page.aboutList.includes(term) + HEADING * page.headings.has(term));
    });
    const phrases = page.sections.reduce((sum, s) => sum + together(s.list, wanted), 0);
    score += PHRASE * (Boolean(together(page.titleList, wanted)) +
      0.7 * Boolean(together(page.aboutList, wanted)) +
      0.7 * page.sections.slice(1).some((s) => together(s.headingList, wanted)) +
      phrases / (phrases + 3));
    const says = [page.titleList, page.aboutList, ...page.sections.map((s) => s.headingList)];
    if (all.length > wanted.length) score += 2 * PHRASE * says.some((list) => together(list, all));
    // A name of the package, written as it is: the page that documents it.
    if (page.known.has(query)) return 10 * NAME + score;
    return score * page.weight;
  }

  function search(text) {
    const { thing, entry } = meaning(text);
    const { all, typed } = wordsAsked(thing || text);
    const wanted = telling(all).length ? telling(all) : all;
    if (!wanted.length) return [];
    const weights = wanted.map(rarity);
    const loose = [...typed.values()].flat(); // its words may stand apart
    const looseWeights = loose.map(rarity);
    const fits = (page, term) => has(page, term) ||
      (typed.has(term) && typed.get(term).every((word) => has(page, word)));
    const query = text.trim().toLowerCase().replace(/\(\)$/, "");
    const whole = new Set(pages.filter((page) =>
      page.known.has(query) || wanted.every((term) => fits(page, term))));
    // One page has every word of a long query: others with most of them are shown below it.
    const missing = whole.size ? wanted.length / 2 : wanted.length;
    const found = whole.size >= ENOUGH ? [...whole] : pages.filter((page) =>
      whole.has(page) || wanted.filter((term) => !fits(page, term)).length < missing);
    return found
      .map((page) => {
        const scored = page.sections.map((s) => [sectionScore(s, wanted, weights), s]);
        scored.sort((a, b) => b[0] - a[0]);
        const score = pageScore(page, wanted, weights, query, all) +
          LOOSE * pageScore(page, loose, looseWeights, "", loose);
        const anchor = page.known.get(query);
        const first = Boolean(entry) && page === glossary, isWhole = whole.has(page);
        const section = first ? entry : scored[0][1];
        return { page, wanted, section, anchor, first, whole: isWhole, score: score * (isWhole ? 1 : PART) };
      })
      .sort((a, b) => b.first - a.first || b.score - a.score);
  }

  /** Whether a word of a text is one that was looked for, or part of another name of it. */
  function isMeant(list, k, wanted) {
    const apart = partsOf(list[k]);
    return apart.every((word) => wanted.includes(word)) ||
      wanted.includes(jointOf(list[k], list[k + 1])) || wanted.includes(jointOf(list[k - 1], list[k])) ||
      names.some(({ name, other }) => name.every((word) => wanted.includes(word)) &&
        other.some((word, i) => word === list[k] && startsAt(list, k - i, other)));
  }

  /** Some words of the section around the first that was looked for, which are marked. */
  function excerpt(text, wanted) {
    const matches = [...text.matchAll(WORD)], list = matches.map((match) => asStem(match[0]));
    const at = matches.filter((match, k) => isMeant(list, k, wanted));
    const first = at.length ? at[0].index : 0;
    let start = Math.max(0, first - EXCERPT / 3);
    if (start) start = text.indexOf(" ", start) + 1;
    const end = Math.min(text.length, start + EXCERPT);
    const says = document.createElement("p");
    says.className = "context";
    let done = start;
    if (start) says.append("… ");
    for (const match of at) {
      if (match.index < done || match.index + match[0].length > end) continue;
      const mark = document.createElement("mark");
      mark.textContent = match[0];
      says.append(text.slice(done, match.index), mark);
      done = match.index + match[0].length;
    }
    says.append(text.slice(done, end).replace(/\s\S*$/, ""), end < text.length ? " …" : "");
    return says;
  }

  function show(text) {
    results.replaceChildren();
    if (!text.trim()) return;
    const found = search(text);
    const says = document.createElement("p");
    says.className = "search-summary";
    says.setAttribute("role", "status");
    const whole = found.filter((each) => each.whole).length, others = found.length - whole;
    says.textContent = !found.length ? "No page has these words."
      : !whole ? `No page has all of these words, ${others} ${others === 1 ? "has" : "have"} some.`
      : (whole === 1 ? "One page has these words" : `${whole} pages have these words`) +
        (others ? `, ${others} more ${others === 1 ? "has" : "have"} most of them.` : ".");
    const list = document.createElement("ul");
    list.className = "search";
    for (const { page, section, wanted, anchor } of found.slice(0, MOST)) {
      const item = document.createElement("li");
      const link = document.createElement("a");
      const isTop = section === page.sections[0];
      link.href = anchor ? `${page.address}#${anchor}` : page.address;
      link.textContent = anchor || page.title;
      item.append(link);
      if (!isTop && !anchor) {
        const part = document.createElement("a");
        part.className = "search-section";
        part.href = `${page.address}#${section.id}`;
        part.textContent = section.heading;
        item.append(" › ", part);
      }
      item.append(excerpt(section.text, wanted));
      list.append(item);
    }
    results.append(says, list);
  }

  const field = document.querySelector(".bd-search-container input[type=search]");
  const asked = new URLSearchParams(location.search).get("q") || "";
  field.value = asked;
  field.addEventListener("input", () => show(field.value));
  show(asked);
})();
