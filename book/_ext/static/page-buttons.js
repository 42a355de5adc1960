// The theme's buttons for the full screen and for printing. The theme writes their scripts into the
// attribute onclick, which the pages' Content-Security-Policy does not let through.
(function () {
  "use strict";
  const actions = { "full-screen": () => window.toggleFullScreen(), print: () => window.print() };
  for (const button of document.querySelectorAll("[data-press]"))
    button.addEventListener("click", actions[button.dataset.press]);
})();
