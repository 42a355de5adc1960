/* The schedule explorer: drag the schedule of a masked diffusion model and its number of steps T.
 * The loss over time changes its shape and keeps its area; the sum of T steps creeps down to it.
 *
 * Its numbers, in <script class="schedule-explorer-data"> (see explorers.js):
 *   curve   S(x; M) for M = 1..D
 *   checks  rows [schedule, T, bound] by the package, where a schedule is a name of SCHEDULES or the
 *           handle [a, b] of a curve of Bezier's from (0, 0) to (1, 1); they must come out again on
 *           load, to a relative 1e-9, or else the static table stays
 */
(function () {
  "use strict";

  var shared = window.explorers;
  var number = shared.number;
  // Where the handle stands; the first two are such curves, the cosine is nearly one.
  var SCHEDULES = { linear: [0.5, 0.5], quadratic: [0.5, 0], cosine: [0.64, 1] };

  function schedule(which) {
    if (which === "cosine") {
      return function (t) { return Math.sin((Math.PI * t) / 2); };
    }
    var a = (SCHEDULES[which] || which)[0], b = (SCHEDULES[which] || which)[1];
    return function (t) {
      var u = t / (a + Math.sqrt(a * a + (1 - 2 * a) * t));
      return 2 * u * (1 - u) * b + u * u;
    };
  }

  /** The Bernstein polynomial of the curve at a masking rate, by de Casteljau's algorithm. */
  function smoothed(curve, rho) {
    var level = curve.slice();
    for (var n = level.length - 1; n > 0; n--) {
      for (var k = 0; k < n; k++) level[k] = (1 - rho) * level[k] + rho * level[k + 1];
    }
    return level[0];
  }

  /** The bound's part from each of T steps: a right Riemann sum. */
  function steps(curve, rho, T) {
    var parts = [];
    for (var i = 1; i <= T; i++) {
      parts.push((rho(i / T) - rho((i - 1) / T)) * curve.length * smoothed(curve, rho(i / T)));
    }
    return parts;
  }

  /** The loss per unit of time at the middles of n short times; their mean is the area. */
  function loss(curve, rho, n) {
    var values = [];
    for (var i = 0; i < n; i++) {
      var from = rho(i / n), to = rho((i + 1) / n);
      values.push(-n * (to - from) * curve.length * smoothed(curve, (from + to) / 2));
    }
    return values;
  }

  function isUsable(data) {
    return data.curve.length > 1 && data.checks.every(function (row) {
      var found = shared.sum(steps(data.curve, schedule(row[0]), row[1]));
      return Math.abs(found - row[2]) <= 1e-9 * Math.abs(found);
    });
  }

  function Explorer(root, data, id) {
    var D = data.curve.length, which = "linear", handle = SCHEDULES.linear;
    var frame = shared.shell(root, id, "Schedule explorer",
      "Choose a schedule or drag its handle. The loss over time changes its shape and keeps its area.");
    var named = Object.keys(SCHEDULES).map(function (name) {
      return shared.button(name, function () {
        which = name;
        handle = SCHEDULES[name];
        update(true);
      });
    });
    function share(value) {
      return value.toFixed(2);
    }
    var T = shared.slider("T", "Steps T", [1, 64, 1], String, update);
    var across = shared.slider("time", "Handle, time", [0.1, 0.9, 0.01], share, own);
    var up = shared.slider("level", "Handle, rate", [0, 1, 0.01], share, own);
    function own(final) {
      which = handle = [across.get(), up.get()];
      update(final);
    }
    var clock = shared.el("div", { class: "oe-picture" }), bars = shared.el("div", { class: "oe-picture" });
    var sums = shared.sums({
      area: "Area under the loss", sum: "Sum of T steps", gap: "Too much by", best: "\u2212 \u03a3 S(M)"
    });
    root.append(
      shared.el("div", { class: "oe-actions", role: "group", "aria-label": "Schedules" }, named),
      shared.el("div", { class: "oe-sliders" }, [T.node, across.node, up.node]),
      sums.node, clock, bars,
      shared.el("p", { class: "oe-note" }, [
        "Shaded: the loss in continuous time. Bars: what each step adds; together they are " +
          "the NELBO of T steps, and the shaded area is its limit, the same for all schedules."
      ]),
      frame.live
    );

    function update(final) {
      across.set(handle[0]);
      up.set(handle[1]);
      named.forEach(function (button) {
        button.setAttribute("aria-pressed", button.textContent === which);
      });
      var rho = schedule(which), count = T.get();
      var parts = steps(data.curve, rho, count), values = loss(data.curve, rho, 2000);
      var area = shared.sum(values) / values.length, bound = -shared.sum(parts);
      sums.set("area", number(area, 3));
      sums.set("sum", number(bound, 3));
      sums.set("gap", number(bound + shared.sum(data.curve), 3));
      sums.set("best", number(-shared.sum(data.curve), 3));
      drawClock(rho, count);
      drawBars(values, parts);
      if (final) {
        frame.say(
          (typeof which === "string" ? "The " + which : "Your own") + " schedule, " + count +
            (count > 1 ? " steps" : " step") + ": area " + number(area, 3) + " nats as before, sum of the steps " +
            number(bound, 3) + "."
        );
      }
    }

    function drawClock(rho, count) {
      var c = shared.chart(root, "The masking rate against time; the handle bends it.", 220, [0, 1], [0, 1],
        "time t", "masking rate \u03c1(t)");
      var points = [];
      for (var i = 0; i <= 100; i++) points.push([i / 100, rho(i / 100)]);
      c.line("oe-pull", [[0, 0], handle, [1, 1]]);
      c.line("oe-mean", points);
      if (count <= 32) {
        for (i = 1; i <= count; i++) {
          c.add("circle", { class: "oe-mean-dot", cx: c.px(i / count), cy: c.py(rho(i / count)), r: 3.5 });
        }
      }
      c.add("circle", { class: "oe-handle", cx: c.px(handle[0]), cy: c.py(handle[1]), r: 11 });
      clock.replaceChildren(c.node);
      clockChart = c;
    }

    // The pointer is captured by the box that stays: the chart in it is drawn anew on the way.
    var clockChart = null, dragging = false;
    clock.addEventListener("pointerdown", function (event) {
      dragging = event.target.classList.contains("oe-handle");
      if (!dragging) return;
      event.preventDefault();
      clock.setPointerCapture(event.pointerId);
    });
    ["pointermove", "pointerup", "pointercancel"].forEach(function (kind) {
      clock.addEventListener(kind, function (event) {
        if (!dragging) return;
        dragging = kind === "pointermove";
        if (kind === "pointercancel") return;
        var c = clockChart, box = c.node.getBoundingClientRect();
        var scale = c.node.viewBox.baseVal.width / box.width;
        across.set((scale * (event.clientX - box.left) - c.px(0)) / (c.px(1) - c.px(0)));
        up.set((scale * (event.clientY - box.top) - c.py(0)) / (c.py(1) - c.py(0)));
        own(!dragging); // the sliders have kept the handle within its range
      });
    });

    function drawBars(values, parts) {
      var tallest = Math.max(Math.max.apply(null, values), -parts.length * Math.min.apply(null, parts));
      var c = shared.chart(root, "The loss against time, and the bars of the steps; their sums are given above.",
        250, [0, 1], [0, Math.min(1.05 * tallest, 5 * D * -data.curve[D - 1])], "time t", "nats per unit of time");
      var shape = values.map(function (v, k) { return [(k + 0.5) / values.length, v]; });
      c.add("path", { class: "oe-area", d: c.path([[0, 0]].concat(shape, [[1, 0]])) + "Z" });
      parts.forEach(function (part, k) {
        var y = c.py(-part * parts.length), x = c.px(k / parts.length);
        c.add("rect", { class: "oe-stairs", x: x, y: y, width: c.px((k + 1) / parts.length) - x, height: c.py(0) - y });
      });
      bars.replaceChildren(c.node);
    }

    T.set(data.start || 8);
    update(false);
    shared.onWidth(root, function () { update(false); });
  }

  shared.start("schedule-explorer", isUsable, Explorer);
})();
