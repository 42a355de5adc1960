// The search of the book: whole words (in any of their forms), the page first that is about them.
// It runs on the page of the search alone, on `searchPages` (search_pages.py), also from a folder.
(function () {
  "use strict";
  const results = document.getElementById("search-results");
  if (!results || !window.searchPages) return;

  // How much a word counts where it stands; a page's text is weighed as in BM25.
  const TITLE = 7, ABOUT = 4.5, HEADING = 2.5, NAME = 6, TEXT = 1, PHRASE = 4, BEST = 0.6;
  const RARE = { "book/changelog": 0.25, "book/bibliography": 0.35, "book/map": 0.6,
    "book/errata": 0.7, "book/status": 0.6, "book/teach": 0.6, "book/api": 0.5,
    // these name much and explain little
    "book/index": 0.4, "book/paths": 0.5, "book/results": 0.5, "book/after-one-hour": 0.5 };
  const COMMON = new Set(("a an and are as at be by can do does for from has have how i if in is it " +
    "its not of on or should that the this to was what when which who why will with").split(" "));
  const MOST = 30, EXCERPT = 220;

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
  const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
  const terms = (text) => words(text).map(stem);

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
      titleList: terms(page.title.replace(/^[\d.]+/, "")),
      aboutList: terms(`${page.about} ${name.replace(/^.*\//, "")}`),
      headings: new Set(sections.slice(1).flatMap((section) => section.headingList)),
      known: namesOf(page.names),
      counts: counts(sections.flatMap((section) => section.list)),
      length: sections.reduce((sum, section) => sum + section.list.length, 0)
    };
  });
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
    const asked = [page.titleList, page.aboutList, ...page.sections.map((s) => s.headingList)];
    if (all.length > wanted.length) score += 2 * PHRASE * asked.some((list) => together(list, all));
    // A name of the package, written as it is: the page that documents it.
    if (page.known.has(query)) return 10 * NAME + score;
    return score * page.weight;
  }

  function search(text) {
    const all = terms(text);
    const telling = words(text).filter((word) => !COMMON.has(word)).map(stem);
    const wanted = telling.length ? telling : all;
    if (!wanted.length) return [];
    const weights = wanted.map(rarity);
    const query = text.trim().toLowerCase().replace(/\(\)$/, "");
    let found = pages.filter((page) =>
      page.known.has(query) || wanted.every((term) => has(page, term)));
    if (!found.length) found = pages.filter((page) => wanted.some((term) => has(page, term)));
    return found
      .map((page) => {
        const scored = page.sections.map((s) => [sectionScore(s, wanted, weights), s]);
        scored.sort((a, b) => b[0] - a[0]);
        const score = pageScore(page, wanted, weights, query, all);
        return { page, wanted, section: scored[0][1], anchor: page.known.get(query), score };
      })
      .sort((a, b) => b.score - a.score);
  }

  /** Some words of the section around the first that was looked for, which are marked. */
  function excerpt(text, wanted) {
    const at = [...text.matchAll(/[\p{L}\p{N}_]+/gu)]
      .filter((match) => wanted.includes(stem(match[0].toLowerCase())));
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
    says.textContent = !found.length ? "No page has these words."
      : found.length === 1 ? "One page has these words." : `${found.length} pages have these words.`;
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
