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
  const TURN = 30; // milliseconds after which the page may answer its reader
  const pause = () => new Promise((done) => setTimeout(done));
  const inSight = (formula) => formula.getBoundingClientRect().top < 1.5 * window.innerHeight;

  // As many at a time as a turn has room for, judged by the last ones.
  async function setInTurns(formulas) {
    let count = 4;
    for (let first = 0; first < formulas.length; ) {
      await pause();
      const few = formulas.slice(first, first + count);
      const start = performance.now();
      await MathJax.typesetPromise(few);
      const perFormula = (performance.now() - start) / few.length;
      first += few.length;
      count = Math.max(1, Math.min(80, Math.floor(TURN / perFormula)));
    }
  }

  async function setAll() {
    const formulas = [...document.querySelectorAll("main .math")];
    await setInTurns(formulas.filter(inSight));
    show();
    await setInTurns(formulas.filter((formula) => !formula.querySelector("mjx-container")));
    await MathJax.typesetPromise(); // what stands outside the text: contents, outputs of cells
  }

  window.MathJax.startup = { typeset: false, pageReady: () => setAll().finally(show) };
})();
