// Hover previews of links inside the book. hover_cards.py writes, for each page, a script with what its
// links show: `hoverCards.cards`, HTML by address. Links of the classes `hoverCards.bare` show nothing.
(function () {
  "use strict";
  let open = null;
  let count = 0;

  function close() {
    if (!open) return;
    open.link.removeAttribute("aria-describedby");
    open.box.remove();
    open = null;
  }

  function place(link, box) {
    const margin = 8;
    const at = link.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.max(margin, Math.min(at.left, width - box.offsetWidth - margin));
    const below = at.bottom + margin;
    const fits = below + box.offsetHeight < window.innerHeight;
    const top = fits ? below : Math.max(margin, at.top - box.offsetHeight - margin);
    box.style.left = `${left}px`;
    box.style.top = `${top}px`;
  }

  function show(link, card) {
    close();
    const box = document.createElement("div");
    box.className = "hover-preview";
    box.id = `hover-preview-${(count += 1)}`;
    box.setAttribute("role", "tooltip");
    box.style.maxWidth = "min(500px, calc(100vw - 16px))";
    box.innerHTML = card;
    for (const part of box.querySelectorAll("[id]")) part.removeAttribute("id");
    document.body.appendChild(box);
    link.setAttribute("aria-describedby", box.id);
    open = { link, box };
    place(link, box);
    MathJax.typesetPromise([box]);
    window.setTimeout(() => open && open.box === box && place(link, box), 120);
  }

  function listen(link, card) {
    let timer = 0;
    const later = () => {
      timer = window.setTimeout(() => show(link, card), 150);
    };
    const never = () => {
      window.clearTimeout(timer);
      close();
    };
    link.addEventListener("mouseenter", later);
    link.addEventListener("mouseleave", never);
    link.addEventListener("focus", later);
    link.addEventListener("blur", never);
  }

  window.addEventListener("load", () => {
    const { bare, cards } = window.hoverCards || { bare: [], cards: {} };
    for (const link of document.querySelectorAll("article.bd-article a[href]")) {
      const card = cards[link.getAttribute("href")];
      if (card && !bare.some((name) => link.classList.contains(name))) listen(link, card);
    }
  });

  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
  document.addEventListener("scroll", close, { passive: true });
})();
