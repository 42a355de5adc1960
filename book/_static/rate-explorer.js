/* The rate explorer: sliders for K, D, the noise variance and one masking rate on the closed form
 * of PPCA's mask-rate curve, its area, D S(M) at that rate, and the crossover rate. The picture
 * draws surprise, -S(M), upward; the numbers keep the sign of S.
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
  // From 0.1 on the expected surprise of a guess, at least 1/2 ln(2 pi e 0.1), is above 0 and the stairs stand on it.
  var NOISE = [0.1, 0.2, 0.5, 1, 2, 5, 10];

  /** Everything about one setting; S[M - 1] = -1/2 ln(2 pi e v(D - M)). */
  function at(K, D, s2, rate) {
    var S = [];
    for (var M = 1; M <= D; M++) {
      var gap = s2 + K - (D - M);
      var v = (gap + Math.sqrt(gap * gap + 4 * s2 * (D - M))) / 2;
      S.push(-0.5 * Math.log(2 * Math.PI * Math.E * v));
    }
    var area = shared.sum(S), height = area / D;
    var chosen = Math.max(1, Math.floor(rate * D + 1e-9)); // as many as masks.FixedRate hides
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
      "Each stair is the expected surprise of one guess, and what lies below the stairs is the surprise of all guesses " +
        "together, minus the area. One masking rate puts a rectangle in its place, as high as the stair at that rate. " +
        "Move the sliders.");
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
      area: "E log p(x), the area", one: "D S(M), the rectangle", error: "log p(x) comes out",
      crossover: "Crossover rate \u03c1*"
    });
    root.append(
      shared.el("div", { class: "oe-sliders" }, [K.node, D.node, s2.node, rate.node]),
      picture, sums.node, frame.live
    );

    function about(value) { // the formula is approximate: it may miss the area by a nat or two
      return "about " + number(value, 1);
    }

    function moved(final) {
      K.set(Math.min(K.get(), D.get() - 1), Math.min(100, D.get() - 1));
      var now = at(K.get(), D.get(), NOISE[s2.get()], rate.get() / 100);
      var error = now.one - now.area;
      var side = Math.abs(error) < 0.05 ? "about right" : about(Math.abs(error)) + (error > 0 ? " too high" : " too low");
      var crossover = about(100 * now.crossover) + " %";
      sums.set("area", about(now.area));
      sums.set("one", about(now.one));
      sums.set("error", side);
      sums.set("crossover", crossover);
      draw(now);
      if (final) {
        frame.say(
          "With " + now.M + " of " + D.get() + " coordinates masked, D S is " + about(now.one) +
            " nats, E log p(x) " + about(now.area) + ": it comes out " + side + ". It would be right at a rate of " +
            crossover + "."
        );
      }
    }

    function draw(now) {
      var surprise = now.S.map(function (s) { return -s; }), mean = -now.height;
      var size = surprise.length, high = surprise[size - 1], low = -0.06 * high;
      var c = shared.chart(root, "Stairs of surprise climb to the right, and the rectangle of the chosen rate is as high as " +
        "one of them; the numbers are given below.", 290, [0, 1], [low, high - low],
        "masking rate \u03c1 = M / D", "surprise of a guess, \u2212S(M), in nats");
      var r = now.M / size, top = surprise[now.M - 1];
      var stairs = []; // since there are only whole M
      surprise.forEach(function (s, k) { stairs.push([k / size, s], [(k + 1) / size, s]); });
      function between(name, keeps) { // the stairs and the rectangle's edge, where one is above the other
        var edge = stairs.map(function (p) { return [p[0], keeps(p[1]) ? p[1] : top]; });
        c.add("path", { class: name, d: c.path([[0, top]].concat(edge, [[1, top]])) + "Z" });
      }
      c.add("path", { class: "oe-below", d: c.path([[0, 0]].concat(stairs, [[1, 0]])) + "Z" });
      between("oe-too-high", function (s) { return s > top; });
      between("oe-too-low", function (s) { return s < top; });
      c.line("oe-mean", stairs);
      c.line("oe-chosen", [[0, 0], [0, top], [1, top], [1, 0], [0, 0]]);
      c.line("oe-rule", [[0, mean], [1, mean]]);
      c.line("oe-rule", [[now.crossover, mean], [now.crossover, low]]);
      c.add("circle", { class: "oe-chosen-dot", cx: c.px(r), cy: c.py(top), r: 6 });
      c.add("text", { x: c.px(now.crossover) - 6, y: c.py(0) - 8, "text-anchor": "end" }, "\u03c1*");
      c.add("text", { x: c.px(0.02), y: c.py(mean) - 6 }, "mean height, \u2212area / D");
      picture.replaceChildren(
        c.node,
        shared.legend([
          ["oe-below", "Below the stairs: the surprise of all guesses together, minus the area."],
          ["oe-chosen", "Frame with the dot: the rectangle of your rate."],
          ["oe-too-high", "The stairs above the frame: surprise left out, and log p(x) comes out too high."],
          ["oe-too-low", "The frame above the stairs: too much surprise, and log p(x) comes out too low."]
        ]),
        shared.el("p", { class: "oe-note" }, [
          "At the crossover rate \u03c1* the last two are equally large, and the frame is as high as the stairs on " +
            "average, dashed."
        ])
      );
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
