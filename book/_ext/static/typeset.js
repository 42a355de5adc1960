// Formulas are set before they are shown, so that no line moves under the reader's eyes: first those
// in sight, then the page appears, then the others, a few at a time. `MathJax.startup.promise`
// is kept once all are set.
(function () {
  "use strict";
  const root = document.documentElement;
  const show = () => root.classList.remove("setting");
  if (!window.MathJax) {
    show();
    return;
  }
  const FEW = 80;
  const pause = () => new Promise((done) => setTimeout(done));
  const inSight = (formula) => formula.getBoundingClientRect().top < 1.5 * window.innerHeight;

  async function setAll() {
    const formulas = [...document.querySelectorAll("main .math")];
    await MathJax.typesetPromise(formulas.filter(inSight));
    show();
    const left = formulas.filter((formula) => !formula.querySelector("mjx-container"));
    for (let first = 0; first < left.length; first += FEW) {
      await pause();
      await MathJax.typesetPromise(left.slice(first, first + FEW));
    }
    await MathJax.typesetPromise(); // what stands outside the text: contents, outputs of cells
  }

  window.MathJax.startup = { typeset: false, pageReady: () => setAll().finally(show) };
})();
