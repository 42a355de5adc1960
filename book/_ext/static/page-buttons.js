// The theme's buttons for the full screen and for printing. The theme writes their scripts into the
// attribute onclick, which the pages' Content-Security-Policy does not let through.
//
// Paper is white: a page that is read in the dark is printed with the colors of the light theme.
(function () {
  "use strict";
  const actions = { "full-screen": () => window.toggleFullScreen(), print: () => window.print() };
  for (const button of document.querySelectorAll("[data-press]"))
    button.addEventListener("click", actions[button.dataset.press]);

  const root = document.documentElement;
  let onScreen = null;
  window.addEventListener("beforeprint", () => {
    onScreen = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = onScreen;
  });
})();
