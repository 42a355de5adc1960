/* The rate explorer: sliders for K, D, the noise variance and one masking rate on the closed form
 * of PPCA's mask-rate curve, its area, D S(M) at that rate, and the crossover rate.
 *
 * Its numbers, in <script class="rate-explorer-data"> (see explorers.js):
 *   start   {K, D, s2, rate}, where the sliders stand at first
 *   checks  rows [K, D, s2, rate, area, D S(M), crossover rate] by the package, which the formula
 *           below must give again: on load, to a relative 1e-9, or else the static table stays
 */
(function () {
  "use strict";

  var shared = window.explorers;
  var number = shared.number;
  var NOISE = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];

  /** Everything about one setting; S[M - 1] = -1/2 ln(2 pi e v(D - M)). */
  function at(K, D, s2, rate) {
    var S = [];
    for (var M = 1; M <= D; M++) {
      var gap = s2 + K - (D - M);
      var v = (gap + Math.sqrt(gap * gap + 4 * s2 * (D - M))) / 2;
      S.push(-0.5 * Math.log(2 * Math.PI * Math.E * v));
    }
    var area = shared.sum(S), height = area / D, chosen = Math.max(1, Math.round(rate * D));
    var k = S.findIndex(function (s) { return s <= height; }); // the curve falls through its mean
    return {
      S: S, area: area, height: height, M: chosen, one: D * S[chosen - 1],
      crossover: (k + (S[k - 1] - height) / (S[k - 1] - S[k])) / D
    };
  }

  function isUsable(data) {
    return data.checks.length > 0 && data.checks.every(function (row) {
      var found = at(row[0], row[1], row[2], row[3]);
      return [found.area, found.one, found.crossover].every(function (value, k) {
        return Math.abs(value - row[4 + k]) <= 1e-9 * Math.max(1, Math.abs(value));
      });
    });
  }

  function Explorer(root, data, id) {
    var frame = shared.shell(root, id, "Rate explorer",
      "The height of the curve at one masking rate, times D, is a rectangle. Is it the area under the curve? Move the sliders.");
    function percent(value) {
      return value + " %";
    }
    var K = shared.slider("K", "Latent dimensions K", [1, 100, 1], String, moved);
    var D = shared.slider("D", "Coordinates D", [20, 400, 10], String, moved);
    var s2 = shared.slider("s2", "Noise variance \u03c3\u00b2", [0, NOISE.length - 1, 1], function (k) {
      return String(NOISE[k]);
    }, moved);
    var rate = shared.slider("rate", "Masking rate \u03c1", [1, 100, 1], percent, moved);
    var picture = shared.el("div", { class: "oe-picture" });
    var sums = shared.sums({
      area: "Area, E log p(x)", one: "Rectangle, D S(M)", error: "The rectangle is", crossover: "Crossover rate \u03c1*"
    });
    root.append(
      shared.el("div", { class: "oe-sliders" }, [K.node, D.node, s2.node, rate.node]),
      picture, sums.node, frame.live
    );

    function moved(final) {
      K.set(Math.min(K.get(), D.get() - 1), Math.min(100, D.get() - 1));
      var now = at(K.get(), D.get(), NOISE[s2.get()], rate.get() / 100);
      var error = now.one - now.area;
      var side = Math.abs(error) < 0.0005 ? "right" : number(Math.abs(error), 3) + (error > 0 ? " too high" : " too low");
      sums.set("area", number(now.area, 3));
      sums.set("one", number(now.one, 3));
      sums.set("error", side);
      sums.set("crossover", number(100 * now.crossover, 1) + " %");
      draw(now);
      if (final) {
        frame.say(
          "With " + now.M + " of " + D.get() + " coordinates masked, D S is " + number(now.one, 3) +
            " nats, the area " + number(now.area, 3) + ": " + side + ". It would be right at a rate of " +
            number(100 * now.crossover, 1) + " %."
        );
      }
    }

    function draw(now) {
      var size = now.S.length, first = now.S[0], last = now.S[size - 1];
      var low = Math.min(last, 0), high = Math.max(first, 0), pad = 0.06 * (high - low);
      var c = shared.chart(root, "The mask-rate curve by the formula with the area under it, and the rectangle of the " +
        "chosen rate; the numbers are given below.", 290, [0, 1], [low - pad, high + pad],
        "masking rate \u03c1 = M / D", "S(M) in nats");
      var r = now.M / size, S = now.S[now.M - 1];
      var curve = []; // as a staircase, since there are only whole M
      now.S.forEach(function (s, k) { curve.push([k / size, s], [(k + 1) / size, s]); });
      function between(name, keeps) { // the curve and the rectangle's edge, where one is above the other
        var edge = curve.map(function (p) { return [p[0], keeps(p[1]) ? p[1] : S]; });
        c.add("path", { class: name, d: c.path([[0, S]].concat(edge, [[1, S]])) + "Z" });
      }
      c.add("path", { class: "oe-area", d: c.path([[0, 0]].concat(curve, [[1, 0]])) + "Z" });
      between("oe-too-high", function (s) { return s < S; });
      between("oe-too-low", function (s) { return s > S; });
      c.line("oe-chosen", [[0, 0], [0, S], [1, S], [1, 0], [0, 0]]);
      c.line("oe-rule", [[0, now.height], [1, now.height]]);
      c.line("oe-rule", [[now.crossover, now.height], [now.crossover, low - pad]]);
      c.line("oe-mean", now.S.map(function (s, k) { return [(k + 1) / size, s]; }));
      c.add("circle", { class: "oe-chosen-dot", cx: c.px(r), cy: c.py(S), r: 6 });
      c.add("text", { x: c.px(now.crossover) - 6, y: c.py(low - pad) - 6, "text-anchor": "end" }, "\u03c1*");
      c.add("text", { x: c.px(0.02), y: c.py(now.height) + 16 }, "mean height, area / D");
      picture.replaceChildren(c.node, shared.el("p", { class: "oe-note" }, [
        "Filled between the thick curve and zero: the area. Frame with the dot: the rectangle of your rate. Red, where " +
          "the curve is below its edge: what the rectangle has too much. Green, where it is above: what it lacks. At the " +
          "crossover rate \u03c1* both are equally large, and the edge is the mean height, dashed."
      ]));
    }

    D.set(data.start.D);
    K.set(data.start.K, Math.min(100, data.start.D - 1));
    s2.set(NOISE.indexOf(data.start.s2));
    rate.set(100 * data.start.rate);
    moved(false);
    shared.onWidth(root, function () { moved(false); });
  }

  shared.start("rate-explorer", isUsable, Explorer);
})();
