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
  const TURN = 5; // milliseconds after which the page may answer its reader
  const METRICS = 110; // MathJax's number of the step that measures the text around a formula
  const pause = () => new Promise((done) => setTimeout(done));

  // Those above the end of the screen, and half a screen more, in sections that are laid out.
  function inSight(formulas) {
    return new Promise((done) => {
      const look = (seen, observer) => {
        observer.disconnect();
        done(seen.filter((each) => each.isIntersecting).map((each) => each.target));
      };
      const observer = new IntersectionObserver(look, { rootMargin: "1000000px 0px 50%" });
      for (const formula of formulas) observer.observe(formula);
    });
  }

  async function setInTurns(formulas) {
    let end = 0;
    for (const formula of formulas) {
      if (performance.now() > end) {
        await pause();
        end = performance.now() + TURN;
      }
      await MathJax.typesetPromise([formula]);
    }
  }

  async function setAll() {
    measured = MathJax.getMetricsFor(document.body, false);
    const formulas = [...document.querySelectorAll("main .math")];
    if (formulas.length) await setInTurns(await inSight(formulas));
    show();
    await setInTurns(formulas.filter((formula) => !formula.querySelector("mjx-container")));
  }

  // The text around a formula is of one family everywhere, and measured once: to measure it at each
  // formula would lay the page out each time.
  let measured;
  function takeMeasured(page) {
    const { em, ex, containerWidth, lineWidth, scale } = measured;
    for (const formula of page.math) {
      if (formula.state() >= METRICS) continue;
      formula.setMetrics(em, ex, containerWidth, lineWidth, scale);
      formula.state(METRICS);
    }
  }

  let finish;
  const all = new Promise((done) => (finish = done));
  MathJax.options.renderActions = { metrics: [METRICS, takeMeasured, "", false] };
  MathJax.startup = {
    typeset: false,
    promise: all, // until MathJax has its own
    ready: () => pause().then(() => MathJax.startup.defaultReady()),
    pageReady: () => setAll().finally(show).finally(finish),
  };
  window.addEventListener("beforeprint", () => MathJax.typeset?.());
})();
