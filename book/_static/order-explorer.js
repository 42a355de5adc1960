/* The order explorer: reveal the coordinates of one point in any order and watch
 * log p(x_j | what is revealed) add up.
 *
 * Its numbers, in <script class="order-explorer-data"> (see explorers.js):
 *   names   D coordinate names
 *   values  D values of the point, as words
 *   terms   2^D rows: terms[s][j] = log p(x_j | x_R) where bit k of s says that
 *           coordinate k is revealed; null where j is itself in R
 *   curve   the mask-rate curve S(x; M) for M = 1..D
 *   log_p   log p(x), the total of every order; none where orders have totals of their own,
 *           the conditionals of a network: then the area is the mean of these totals
 * Every number shown is one of these or a sum or mean of them.
 */
(function () {
  "use strict";

  var shared = window.explorers;
  var el = shared.el, number = shared.number, sum = shared.sum;
  var STEP_PAUSE = 550; // milliseconds between the steps of a random order

  function orders(D) {
    if (D === 0) return [[]];
    var out = [];
    (function extend(prefix) {
      if (prefix.length === D) out.push(prefix);
      for (var j = 0; j < D; j++) {
        if (prefix.indexOf(j) < 0) extend(prefix.concat(j));
      }
    })([]);
    return out;
  }

  /** The terms log p(x_j | revealed) along an order, first revealed first. */
  function termsAlong(data, order) {
    var revealed = 0;
    return order.map(function (j) {
      var term = data.terms[revealed][j];
      revealed |= 1 << j;
      return term;
    });
  }

  function isUsable(data) {
    var D = data && Array.isArray(data.names) ? data.names.length : 0;
    return (
      D >= 1 && D <= 6 &&
      data.values.length === D &&
      data.curve.length === D &&
      data.terms.length === 1 << D &&
      (!("log_p" in data) || Number.isFinite(data.log_p))
    );
  }

  function Explorer(root, data, id) {
    var D = data.names.length;
    var joint = "log_p" in data; // every order has this total
    var area = sum(data.curve);
    var all = orders(D);
    var order = [];
    var history = [];
    var overlay = false;
    var timer = null;
    var still = window.matchMedia("(prefers-reduced-motion: reduce)");

    function label(j) {
      return data.names[j] + " = " + data.values[j];
    }
    function condition(list) {
      return list.length ? " | " + list.map(label).join(", ") : "";
    }
    function color(j) {
      return "--oe-mark: var(--oe-c" + (j % 6) + ")";
    }

    // ---- the skeleton, built once --------------------------------------
    var frame = shared.shell(root, id, "Order explorer",
      "Reveal the " + D + " coordinates in any order. Each button shows what " +
        "it would add if it came next: its log-probability given what is revealed so far, in nats.");
    var say = frame.say;
    var named = joint ? "log p" : "log q";

    var cards = data.names.map(function (name, j) {
      var card = el("button", { type: "button", class: "oe-card", style: color(j) }, [
        el("span", { class: "oe-name" }, [name]),
        el("span", { class: "oe-value" }),
        el("span", { class: "oe-what" })
      ]);
      card.addEventListener("click", function () {
        stop();
        reveal(j);
      });
      return card;
    });
    root.append(el("div", { class: "oe-cards" }, cards));

    var undo = shared.button("Undo", function () {
      stop();
      if (!order.length) return say("Nothing to undo.");
      var j = order.pop();
      draw();
      say(data.names[j] + " is hidden again.");
    });
    var reset = shared.button("Reset", function () {
      stop();
      order = [];
      draw();
      say("All " + D + " are hidden. The orders you tried are kept below.");
    });
    var random = shared.button("Random order", function () {
      stop();
      order = [];
      play(anotherOrder());
    });
    var every = shared.button("All " + all.length + " orders", function () {
      overlay = !overlay;
      draw();
      say(
        overlay
          ? "Showing all " + all.length + " orders. Their mean term at each step is the mask-rate curve."
          : "The picture of all orders is hidden."
      );
    });
    every.setAttribute("aria-controls", id + "-all");
    root.append(
      el("div", { class: "oe-actions", role: "group", "aria-label": "Explorer controls" },
        [undo, reset, random, every])
    );

    var sums = shared.sums(
      joint
        ? { term: "Latest term", running: "Running sum", remaining: "Remaining", total: "log p(x)" }
        : { term: "Latest term", running: "Running sum", range: "Totals so far", total: "Area" }
    );
    root.append(sums.node);

    root.append(el("p", { class: "oe-subtitle" }, ["Terms so far"]));
    var steps = el("ol", { class: "oe-steps" });
    root.append(steps);
    root.append(frame.live);

    var allBox = el("div", { id: id + "-all", class: "oe-all" });
    var tried = el("div", { class: "oe-tried" });
    root.append(allBox, tried);

    // ---- behavior -------------------------------------------------------
    function digits(value) {
      return number(value, 3);
    }
    function totals(list) {
      return list.map(function (o) { return sum(termsAlong(data, o)); });
    }
    function ends(values) {
      return digits(Math.min.apply(null, values)) + " to " + digits(Math.max.apply(null, values));
    }
    function path(o) {
      return o.map(function (j) { return data.names[j]; }).join(" \u2192 ");
    }
    function anotherOrder() {
      var seen = history.map(String);
      var fresh = all.filter(function (o) {
        return seen.indexOf(String(o)) < 0;
      });
      var pool = fresh.length ? fresh : all;
      return pool[Math.floor(Math.random() * pool.length)].slice();
    }
    function stop() {
      if (timer !== null) window.clearTimeout(timer);
      timer = null;
    }
    /** Reveal all in an order, from none. */
    function play(target) {
      draw();
      (function next() {
        timer = null;
        reveal(target[order.length]);
        if (order.length === D) return;
        if (still.matches) next();
        else timer = window.setTimeout(next, STEP_PAUSE);
      })();
    }
    function reveal(j) {
      if (order.indexOf(j) >= 0) {
        return say(
          label(j) + " is already revealed." + (order.length === D ? " Press Reset to try another order." : "")
        );
      }
      order.push(j);
      var terms = termsAlong(data, order);
      var running = sum(terms);
      var text =
        named + "(" + label(j) + condition(order.slice(0, -1)) + ") = " + number(terms[terms.length - 1], 3) +
        ". Running sum " + number(running, 3) + ".";
      if (order.length === D) {
        text += joint
          ? " All revealed: the terms add up to log p(x) = " + digits(running) + "."
          : " All revealed: this order's total is " + digits(running) + ", the area " + digits(area) + ".";
        history = history.filter(function (o) {
          return String(o) !== String(order);
        });
        history.unshift(order.slice());
        text += " " + history.length + " of " + all.length + " orders tried.";
        if (!joint) text += " Their totals: " + ends(totals(history)) + ".";
      } else if (joint) {
        text += " Remaining " + number(data.log_p - running, 3) + ".";
      }
      draw();
      say(text);
    }

    // ---- drawing --------------------------------------------------------
    function draw() {
      var terms = termsAlong(data, order);
      var running = sum(terms);
      var revealed = order.reduce(function (s, j) {
        return s | (1 << j);
      }, 0);
      cards.forEach(function (card, j) {
        var shown = order.indexOf(j) >= 0;
        var spans = card.querySelectorAll("span");
        card.dataset.revealed = shown;
        card.setAttribute("aria-disabled", shown);
        spans[1].textContent = shown ? "= " + data.values[j] : "hidden";
        spans[2].textContent = shown
          ? "step " + (order.indexOf(j) + 1)
          : "next: " + number(data.terms[revealed][j], 3);
      });
      sums.set("term", order.length ? number(terms[terms.length - 1], 3) : "none yet");
      sums.set("running", digits(running));
      sums.set("total", digits(joint ? data.log_p : area));
      if (joint) sums.set("remaining", digits(data.log_p - running));
      else sums.set("range", history.length ? ends(totals(history)) : "none yet");
      every.setAttribute("aria-pressed", overlay);
      drawSteps(terms);
      drawAll();
      drawTried();
    }

    function drawSteps(terms) {
      // Zero on the left; one scale for every order, so that bars can be compared.
      var scale = 100 / Math.max(joint ? -data.log_p : -Math.min.apply(null, totals(all)), 1e-300);
      var running = 0;
      var rows = order.map(function (j, t) {
        var bar = el("div", { class: "oe-bar", style: color(j) });
        bar.style.left = Math.abs(running) * scale + "%";
        bar.style.width = Math.abs(terms[t]) * scale + "%";
        running += terms[t];
        return el("li", {}, [
          el("div", { class: "oe-step-label" }, [
            el("span", {}, [t + 1 + ". " + named + "(" + label(j) + condition(order.slice(0, t)) + ")"]),
            el("span", { class: "oe-number" }, [number(terms[t], 3)])
          ]),
          el("div", { class: "oe-track", "aria-hidden": "true" }, [bar])
        ]);
      });
      var start = 0;
      var pieces = order.map(function (j, t) {
        var piece = el("div", { class: "oe-bar", style: color(j) });
        piece.style.left = start * scale + "%";
        piece.style.width = Math.abs(terms[t]) * scale + "%";
        start += Math.abs(terms[t]);
        return piece;
      });
      rows.push(
        el("li", { class: "oe-total" }, [
          el("div", { class: "oe-step-label" }, [
            el("span", {}, [
              order.length === D
                ? "Sum of the " + D + " terms" + (joint ? " = log p(x)" : ", this order's total")
                : "Sum so far (a full bar is " + (joint ? "log p(x)" : "the lowest total") + ")"
            ]),
            el("span", { class: "oe-number" }, [number(running, 3)])
          ]),
          el("div", { class: "oe-track", "aria-hidden": "true" }, pieces)
        ])
      );
      steps.replaceChildren.apply(steps, rows);
    }

    function scrollBox(name, table) {
      return el("div", { class: "oe-scroll", tabindex: "0", role: "region", "aria-label": name }, [table]);
    }
    function row(cells, tag) {
      return el("tr", {}, cells.map(function (text, k) {
        var attributes = tag === "th" ? { scope: "col" } : k === 0 ? { scope: "row" } : {};
        return el(tag === "th" || k === 0 ? "th" : "td", attributes, [text]);
      }));
    }

    function drawTried() {
      tried.replaceChildren();
      if (!history.length) return;
      var head = ["Order", "Total"];
      for (var M = D; M >= 1; M--) head.push("M = " + M);
      var body = history.map(function (o) {
        var terms = termsAlong(data, o);
        return row([path(o), digits(sum(terms))].concat(terms.map(function (v) { return number(v, 3); })));
      });
      tried.append(
        el("p", { class: "oe-subtitle" }, ["Orders tried: " + history.length + " of " + all.length]),
        scrollBox(
          "Orders tried",
          el("table", {}, [el("thead", {}, [row(head, "th")]), el("tbody", {}, body)])
        ),
        el("p", { class: "oe-note oe-verdict" }, [
          joint
            ? "Different terms, one total. Latest first."
            : "Different terms, different totals: " + ends(totals(history)) + ", mean " +
              digits(sum(totals(history)) / history.length) + ". The mean over all " + all.length +
              " orders is the area, " + digits(area) + ". Latest first."
        ])
      );
    }

    function drawAll() {
      allBox.replaceChildren();
      allBox.hidden = !overlay;
      if (!overlay) return;
      var lines = all.map(function (o) { return termsAlong(data, o); });
      var reached = lines.map(sum);
      var low = Math.min.apply(null, reached), high = Math.max.apply(null, reached);
      var mean = data.names.map(function (_, t) {
        return sum(lines.map(function (line) { return line[t]; })) / lines.length;
      });
      var head = ["Hidden"];
      var means = ["Mean term"];
      var curve = ["S(x; M)"];
      data.curve.forEach(function (value, k) {
        head.push("M = " + (k + 1));
        means.push(number(mean[D - 1 - k], 3));
        curve.push(number(value, 3));
      });
      head.push("Sum");
      means.push(number(sum(mean), 3));
      curve.push(number(sum(data.curve), 3));
      allBox.append(
        el("p", { class: "oe-subtitle" }, ["All " + all.length + " orders at once"]),
        joint ? picture(lines, mean) : histogram(reached, low, high),
        el("p", { class: "oe-note" }, [
          !joint ? "How many orders have which total. Thick: the area, their mean." +
            (order.length === D ? " Dashed: your order." : "") :
          "Thin: one order each. Thick with dots: their mean, step by step." +
            (order.length ? " Dashed: your order." : "") +
            " Each order walks from the right, where all is hidden, to the left. The mean is the mask-rate curve, upside down."
        ]),
        scrollBox(
          "Mean term at each number of hidden coordinates and the mask-rate curve",
          el("table", {}, [
            el("thead", {}, [row(head, "th")]),
            el("tbody", {}, [row(means), row(curve)])
          ])
        ),
        el("p", { class: "oe-note oe-range" }, [
          "Smallest and largest total over all orders: " + digits(low) + " and " + digits(high) +
            (joint ? agreement(high - low) : ", by " + path(all[reached.indexOf(low)]) + " and " +
              path(all[reached.indexOf(high)]) + ". Their mean: " + digits(sum(reached) / reached.length) + ".")
        ])
      );
    }

    function agreement(distance) {
      var decimals = Math.min(12, Math.floor(-Math.log10(2 * distance + 1e-300)));
      return decimals >= 3 ? ", equal to " + decimals + " decimals." : ".";
    }

    function histogram(values, low, high) {
      var bins = 24, counts = new Array(bins).fill(0), step = (high - low) / bins || 1;
      values.forEach(function (v) {
        counts[Math.min(bins - 1, Math.floor((v - low) / step))]++;
      });
      var most = Math.max.apply(null, counts) * 1.1;
      var c = shared.chart(root, "Histogram of the totals of all " + values.length + " orders, from " +
        digits(low) + " to " + digits(high) + " nats.", 230, [low, low + bins * step], [0, most],
        "total of an order, in nats", "orders");
      counts.forEach(function (n, k) {
        var x = c.px(low + k * step);
        c.add("rect", { class: "oe-count", x: x, y: c.py(n), height: c.py(0) - c.py(n),
          width: c.px(low + step) - c.px(low) - 1 });
      });
      c.line("oe-mean", [[area, 0], [area, most]]);
      if (order.length === D) {
        var mine = sum(termsAlong(data, order));
        c.line("oe-mine", [[mine, 0], [mine, most]]);
      }
      return c.node;
    }

    function picture(lines, mean) {
      var lowest = Math.min.apply(null, lines.map(function (line) { return Math.min.apply(null, line); }));
      var c = shared.chart(root, "Surprise at a step against the number still hidden for all " + lines.length +
        " orders; the mean term is given in the table below.", 250, [0.8, D + 0.2],
        [0, Math.ceil(-lowest * 2) / 2], "hidden coordinates M", "surprise, minus a term, in nats");
      function points(values) { // at step t, M = D - t + 1 are still hidden; surprise is drawn upward
        return values.map(function (v, t) { return [D - t, -v]; });
      }
      lines.forEach(function (line) {
        c.line("oe-one", points(line));
      });
      c.line("oe-mean", points(mean));
      mean.forEach(function (v, t) {
        c.add("circle", { class: "oe-mean-dot", cx: c.px(D - t), cy: c.py(-v), r: 5 });
      });
      if (order.length) c.line("oe-mine", points(termsAlong(data, order)));
      return c.node;
    }

    draw();
    shared.onWidth(root, drawAll);
  }

  shared.start("order-explorer", isUsable, Explorer);
})();
