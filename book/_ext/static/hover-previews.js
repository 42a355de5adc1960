// Hover previews of links inside the book. sphinx_tippy writes, for each page, which link shows
// what and calls `tippy(link, {content, onShow, maxWidth})`; this is that function, without the
// library that would have to come from another site.
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

  function show(link, props) {
    close();
    const box = document.createElement("div");
    box.className = "hover-preview";
    box.id = `hover-preview-${(count += 1)}`;
    box.setAttribute("role", "tooltip");
    box.style.maxWidth = `min(${props.maxWidth || 500}px, calc(100vw - 16px))`;
    box.innerHTML = props.content;
    for (const part of box.querySelectorAll("[id]")) part.removeAttribute("id");
    document.body.appendChild(box);
    link.setAttribute("aria-describedby", box.id);
    open = { link, box };
    place(link, box);
    if (props.onShow) props.onShow({ popper: box, reference: link });
    window.setTimeout(() => open && open.box === box && place(link, box), 120);
  }

  window.tippy = function (link, props) {
    let timer = 0;
    const later = () => {
      timer = window.setTimeout(() => show(link, props), 150);
    };
    const never = () => {
      window.clearTimeout(timer);
      close();
    };
    link.addEventListener("mouseenter", later);
    link.addEventListener("mouseleave", never);
    link.addEventListener("focus", later);
    link.addEventListener("blur", never);
  };

  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
  document.addEventListener("scroll", close, { passive: true });
})();
