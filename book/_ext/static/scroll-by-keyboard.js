// What scrolls inside the page can be reached by the keyboard. A box is measured when it has been laid
// out, and again when it, or the table in it, has changed its size.
(function () {
  "use strict";
  const BOXES = "pre, .cell_output > .output, .pst-scrollable-table-container";
  const scrolls = (box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  const observer = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      const box = target.closest(BOXES);
      if (scrolls(box)) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  });
  const parts = `${BOXES}, .pst-scrollable-table-container > table`;
  for (const part of document.querySelectorAll(parts)) observer.observe(part);
})();
