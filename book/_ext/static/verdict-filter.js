// On a page with many entries of the ledger: buttons that leave only those of one verdict. Without
// JavaScript the whole table stands there, as it does before a button is pressed.
(function () {
  "use strict";
  const FEWEST = 20;
  const rows = [...document.querySelectorAll("table.ledger:not(.ledger-summary) tbody tr")].filter(
    (row) => row.querySelector("td.col-verdict .verdict")
  );
  if (rows.length < FEWEST) return;
  const verdictOf = (row) => row.querySelector("td.col-verdict .verdict").textContent.trim();
  const counts = new Map();
  for (const row of rows) counts.set(verdictOf(row), (counts.get(verdictOf(row)) || 0) + 1);

  const bar = document.createElement("div");
  bar.className = "verdict-filter";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Entries by verdict");
  const said = document.createElement("p");
  said.className = "verdict-filter-said";
  said.setAttribute("role", "status");

  function choose(verdict) {
    for (const row of rows) row.hidden = verdict !== "all" && verdictOf(row) !== verdict;
    for (const table of new Set(rows.map((row) => row.closest("table")))) {
      const empty = [...table.tBodies[0].rows].every((row) => row.hidden);
      table.closest("section").hidden = empty;
    }
    for (const button of bar.querySelectorAll("button"))
      button.setAttribute("aria-pressed", button.dataset.verdict === verdict);
    const shown = rows.filter((row) => !row.hidden).length;
    said.textContent = verdict === "all" ? "" : `${shown} of ${rows.length} entries are shown.`;
  }

  for (const [verdict, count] of [["all", rows.length], ...counts]) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.verdict = verdict;
    button.textContent = `${verdict} ${count}`;
    button.addEventListener("click", () => choose(verdict));
    bar.append(button);
  }
  bar.append(said);
  // Above the section with the first entry, below the heading that they all have in common.
  rows[0].closest("section").before(bar);
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.closest("[hidden]")) {
      choose("all");
      target.scrollIntoView();
    }
  });
  choose("all");
})();
