/* Turns the home page into the whole book: the articles of all pages, one after the other.
   `pages` are addresses relative to the site, in the order of the contents, `front` the lines of the
   title page with the class of each. */

async ({ pages, front }) => {
  await MathJax.startup.promise; // else it would go on with formulas of a page that is no more
  const root = new URL(".", location.href);
  const key = (address) => address.replace(/\.html$/, "").replace(/[^\w-]+/g, "_");
  const known = new Set(pages);
  const articles = [];
  for (const address of pages) {
    const at = new URL(address, root);
    const text = await (await fetch(at)).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    const article = page.querySelector("article.bd-article");
    article.classList.add("printed");
    article.id = key(address);
    for (const each of article.querySelectorAll("[id]")) each.id = `${key(address)}--${each.id}`;
    for (const image of article.querySelectorAll("img[src]")) {
      image.setAttribute("src", new URL(image.getAttribute("src"), at).href);
      image.removeAttribute("loading");
    }
    // Links: into this document where the target is part of it, a note with the address elsewhere.
    const notes = [];
    for (const link of article.querySelectorAll("a[href]")) {
      const to = new URL(link.getAttribute("href"), at);
      const inside = to.href.startsWith(root.href) && to.pathname.slice(root.pathname.length);
      if (inside && known.has(inside)) {
        link.setAttribute("href", `#${key(inside)}${to.hash ? `--${to.hash.slice(1)}` : ""}`);
      } else if (to.protocol.startsWith("http") && to.origin !== location.origin) {
        if (!notes.includes(to.href)) notes.push(to.href);
        if (link.textContent !== to.href) {
          const mark = page.createElement("sup");
          mark.textContent = `[${notes.indexOf(to.href) + 1}]`;
          link.after(mark);
        }
      } else {
        link.removeAttribute("href");
      }
    }
    // What a screen can fold: checks show what they would catch, hidden sources stay away.
    for (const fold of article.querySelectorAll("details.hide")) {
      const check = fold.closest(".tag_check");
      if (check) {
        const says = page.createElement("p");
        says.className = "print-check";
        says.textContent = fold.querySelector("summary .admonition-title").textContent;
        check.replaceChildren(says);
      } else {
        fold.remove();
      }
    }
    for (const fold of article.querySelectorAll("details")) fold.open = true;
    for (const each of article.querySelectorAll(".toggle, .dropdown, .toggle-hidden")) {
      each.classList.remove("toggle", "dropdown", "toggle-hidden");
    }
    for (const each of article.querySelectorAll(".headerlink")) each.remove();
    // Answers wait at the end, too, and say there which question they answer.
    const answers = [...article.querySelectorAll("div.admonition.answer")];
    let question = "";
    for (const each of article.querySelectorAll("div.admonition.question, div.admonition.answer")) {
      const title = each.querySelector(".admonition-title");
      if (each.matches(".question")) question = title.textContent.trim();
      else title.textContent = `Answer to ${question}`;
    }
    const solutions = [...article.querySelectorAll("div.solution")];
    if (answers.length + solutions.length) {
      const heading = page.createElement("h2");
      heading.textContent = answers.length ? "Answers and solutions" : "Solutions";
      article.append(heading, ...answers, ...solutions);
    }
    if (notes.length) {
      const list = page.createElement("ol");
      list.className = "print-links";
      for (const note of notes) {
        list.append(Object.assign(page.createElement("li"), { textContent: note }));
      }
      article.append(list);
    }
    articles.push(document.importNode(article, true));
  }
  document.documentElement.dataset.theme = "light";
  document.documentElement.dataset.mode = "light";
  document.body.className = "printed";
  const titlePage = document.createElement("section");
  titlePage.className = "title-page";
  for (const [kind, text] of front) {
    titlePage.append(Object.assign(document.createElement("p"), { className: kind, textContent: text }));
  }
  const cover = articles.map((each) => each.querySelector("img.cover")).find(Boolean);
  if (cover) titlePage.querySelector(".authors").before(cover.cloneNode());
  document.body.replaceChildren(titlePage, ...articles);
  await MathJax.startup.promise;
  await MathJax.typesetPromise(articles);
  const images = [...document.images].map((image) => image.decode().catch(() => image.src));
  const broken = (await Promise.all(images)).filter(Boolean);
  const ids = new Set([...document.querySelectorAll("[id]")].map((each) => each.id));
  const nowhere = [...document.querySelectorAll("a[href^='#']")]
    .map((link) => link.getAttribute("href"))
    .filter((href) => !ids.has(decodeURIComponent(href.slice(1))));
  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((each) =>
    each.textContent.replace(/\s+/g, " ").trim()
  );
  return { headings, broken, nowhere: [...new Set(nowhere)] };
};
