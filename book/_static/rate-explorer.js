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
      "One masking rate, multiplied up, against the area under the whole curve, by the formula. Move the sliders.");
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
      area: "Area, E log p(x)", one: "D S at the rate", error: "Error of the rate", crossover: "Crossover rate \u03c1*"
    });
    root.append(
      shared.el("div", { class: "oe-sliders" }, [K.node, D.node, s2.node, rate.node]),
      picture, sums.node, frame.live
    );

    function moved(final) {
      K.set(Math.min(K.get(), D.get() - 1), Math.min(100, D.get() - 1));
      var now = at(K.get(), D.get(), NOISE[s2.get()], rate.get() / 100);
      var error = now.one - now.area;
      var side = Math.abs(error) < 0.005 ? "right" : number(Math.abs(error), 2) + (error > 0 ? " too high" : " too low");
      sums.set("area", number(now.area, 2));
      sums.set("one", number(now.one, 2));
      sums.set("error", side);
      sums.set("crossover", number(100 * now.crossover, 1) + " %");
      draw(now);
      if (final) {
        frame.say(
          "With " + now.M + " of " + D.get() + " coordinates masked, D S is " + number(now.one, 2) +
            " nats, the area " + number(now.area, 2) + ": " + side + ". It would be right at a rate of " +
            number(100 * now.crossover, 1) + " %."
        );
      }
    }

    function draw(now) {
      var size = now.S.length, first = now.S[0], last = now.S[size - 1];
      var c = shared.chart(root, "The mask-rate curve by the formula, its mean height, and its height at the " +
        "chosen rate; the numbers are given below.", 270, [0, 1],
        [last - 0.05 * (first - last), first + 0.12 * (first - last)], "masking rate \u03c1 = M / D", "S in nats");
      var points = now.S.map(function (s, k) { return [(k + 1) / size, s]; });
      var r = now.M / size, S = now.S[now.M - 1];
      c.line("oe-chosen", [[0, S], [1, S]]);
      c.line("oe-rule", [[0, now.height], [1, now.height]]);
      c.line("oe-rule", [[now.crossover, now.height], [now.crossover, last]]);
      c.line("oe-mean", points);
      c.add("circle", { class: "oe-chosen-dot", cx: c.px(r), cy: c.py(S), r: 6 });
      c.add("text", { x: c.px(now.crossover) - 6, y: c.py(last) - 6, "text-anchor": "end" }, "\u03c1*");
      c.add("text", { x: c.px(0.02), y: c.py(now.height) + 16 }, "mean height, area / D");
      picture.replaceChildren(c.node, shared.el("p", { class: "oe-note" }, [
        "Thick: S(M). Solid line with the dot: its height at your rate, kept up over all D coordinates. " +
          "Dashed: the mean height; the curve passes it at \u03c1*."
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
