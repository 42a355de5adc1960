/* The order explorer: reveal the coordinates of one point in any order and watch
 * log p(x_j | what is revealed) add up to the same log p(x).
 *
 * It enhances every <div class="order-explorer"> that contains a
 * <script type="application/json" class="order-explorer-data"> with
 *   names   D coordinate names
 *   values  D values of the point, as words
 *   terms   2^D rows: terms[s][j] = log p(x_j | x_R) where bit k of s says that
 *           coordinate k is revealed; null where j is itself in R
 *   log_p   log p(x)
 *   curve   the mask-rate curve S(x; M) for M = 1..D
 * Every number shown is one of these or a sum or mean of them.
 */
(function () {
  "use strict";

  var SVG = "http://www.w3.org/2000/svg";
  var STEP_PAUSE = 550; // milliseconds between the steps of a random order
  var count = 0;

  function el(tag, attributes, children) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (key) {
      node.setAttribute(key, attributes[key]);
    });
    (children || []).forEach(function (child) {
      node.append(child);
    });
    return node;
  }

  function svg(tag, attributes, text) {
    var node = document.createElementNS(SVG, tag);
    Object.keys(attributes || {}).forEach(function (key) {
      node.setAttribute(key, attributes[key]);
    });
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function number(value, digits) {
    var text = Math.abs(value).toFixed(digits);
    return (value < 0 && Number(text) !== 0 ? "\u2212" : "") + text;
  }

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

  function sum(values) {
    return values.reduce(function (a, b) {
      return a + b;
    }, 0);
  }

  function isUsable(data) {
    var D = data && Array.isArray(data.names) ? data.names.length : 0;
    return (
      D >= 1 && D <= 6 &&
      data.values.length === D &&
      data.curve.length === D &&
      data.terms.length === 1 << D &&
      Number.isFinite(data.log_p)
    );
  }

  function Explorer(root, data) {
    var D = data.names.length;
    var id = "order-explorer-" + ++count;
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
    root.replaceChildren();
    root.setAttribute("role", "group");
    root.setAttribute("aria-labelledby", id + "-title");
    root.append(
      el("p", { class: "oe-title", id: id + "-title" }, ["Order explorer"]),
      el("p", { class: "oe-help" }, [
        "Reveal the " + D + " coordinates in any order. Each button shows what its coordinate " +
          "would add next: log p(x_j | what is revealed so far), in nats."
      ])
    );

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

    function action(text, handler) {
      var button = el("button", { type: "button" }, [text]);
      button.addEventListener("click", handler);
      return button;
    }
    var undo = action("Undo", function () {
      stop();
      if (!order.length) return say("Nothing to undo.");
      var j = order.pop();
      draw();
      say(data.names[j] + " is hidden again.");
    });
    var reset = action("Reset", function () {
      stop();
      order = [];
      draw();
      say("All " + D + " coordinates are hidden. The orders you tried are kept below.");
    });
    var random = action("Random order", function () {
      stop();
      var seen = history.map(String);
      var fresh = all.filter(function (o) {
        return seen.indexOf(String(o)) < 0;
      });
      var pool = fresh.length ? fresh : all;
      play(pool[Math.floor(Math.random() * pool.length)].slice());
    });
    var every = action("All " + all.length + " orders", function () {
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
      el("div", { class: "oe-actions", role: "group", "aria-label": "Explorer controls" }, [
        undo, reset, random, every
      ])
    );

    var sums = ["Latest term", "Running sum", "Remaining", "log p(x)"].map(function (name, k) {
      var value = el("dd", { "data-sum": ["term", "running", "remaining", "total"][k] });
      return { box: el("div", {}, [el("dt", {}, [name]), value]), value: value };
    });
    root.append(
      el("dl", { class: "oe-sums" }, sums.map(function (s) {
        return s.box;
      }))
    );

    root.append(el("p", { class: "oe-subtitle" }, ["Terms so far"]));
    var steps = el("ol", { class: "oe-steps" });
    root.append(steps);
    var live = el("p", { class: "oe-note oe-live", "aria-live": "polite", role: "status" });
    root.append(live);

    var allBox = el("div", { id: id + "-all", class: "oe-all" });
    var tried = el("div", { class: "oe-tried" });
    root.append(allBox, tried);

    // ---- behavior -------------------------------------------------------
    function say(text) {
      live.textContent = text;
    }
    function stop() {
      if (timer !== null) window.clearTimeout(timer);
      timer = null;
    }
    function play(target) {
      order = [];
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
        "log p(" + label(j) + condition(order.slice(0, -1)) + ") = " + number(terms[terms.length - 1], 3) +
        ". Running sum " + number(running, 3) + ".";
      if (order.length === D) {
        text += " All revealed: the terms add up to log p(x) = " + number(running, 10) + ".";
        history = history.filter(function (o) {
          return String(o) !== String(order);
        });
        history.unshift(order.slice());
        text += " " + history.length + " of " + all.length + " orders tried.";
      } else {
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
      sums[0].value.textContent = order.length ? number(terms[terms.length - 1], 3) : "none yet";
      sums[1].value.textContent = number(running, 10);
      sums[2].value.textContent = number(data.log_p - running, 10);
      sums[3].value.textContent = number(data.log_p, 10);
      every.setAttribute("aria-pressed", overlay);
      drawSteps(terms);
      drawAll();
      drawTried();
    }

    function drawSteps(terms) {
      // Zero on the left; one scale for every order, so that bars can be compared.
      var scale = 100 / Math.max(Math.abs(data.log_p), 1e-300);
      var running = 0;
      var rows = order.map(function (j, t) {
        var bar = el("div", { class: "oe-bar", style: color(j) });
        bar.style.left = Math.abs(running) * scale + "%";
        bar.style.width = Math.abs(terms[t]) * scale + "%";
        running += terms[t];
        return el("li", {}, [
          el("div", { class: "oe-step-label" }, [
            el("span", {}, [t + 1 + ". log p(" + label(j) + condition(order.slice(0, t)) + ")"]),
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
              order.length === D ? "Sum of the " + D + " terms = log p(x)" : "Sum so far (a full bar is log p(x))"
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
      for (var t = 1; t <= D; t++) head.push("Term " + t);
      var body = history.map(function (o) {
        var terms = termsAlong(data, o);
        var name = o.map(function (j) { return data.names[j]; }).join(" \u2192 ");
        return row([name, number(sum(terms), 10)].concat(terms.map(function (v) { return number(v, 3); })));
      });
      tried.append(
        el("p", { class: "oe-subtitle" }, ["Orders tried: " + history.length + " of " + all.length]),
        scrollBox(
          "Orders tried",
          el("table", {}, [el("thead", {}, [row(head, "th")]), el("tbody", {}, body)])
        ),
        el("p", { class: "oe-note" }, ["Different terms, one total. Latest first."])
      );
    }

    function drawAll() {
      allBox.replaceChildren();
      allBox.hidden = !overlay;
      if (!overlay) return;
      var lines = all.map(function (o) { return termsAlong(data, o); });
      var totals = lines.map(sum);
      var mean = data.names.map(function (_, t) {
        return sum(lines.map(function (line) { return line[t]; })) / lines.length;
      });
      var head = ["Step t"];
      var means = ["Mean term"];
      var curve = ["S(x; M)"];
      mean.forEach(function (value, t) {
        head.push(t + 1 + " (M = " + (D - t) + ")");
        means.push(number(value, 6));
        curve.push(number(data.curve[D - 1 - t], 6));
      });
      head.push("Sum");
      means.push(number(sum(mean), 6));
      curve.push(number(sum(data.curve), 6));
      allBox.append(
        el("p", { class: "oe-subtitle" }, ["All " + all.length + " orders at once"]),
        picture(lines, mean),
        el("p", { class: "oe-note" }, [
          "Thin: one order each. Thick with dots: their mean, step by step." +
            (order.length ? " Dashed: your order." : "") +
            " At step t, M = " + D + " \u2212 t + 1 coordinates are still hidden; the mean is the mask-rate curve there."
        ]),
        scrollBox(
          "Mean term at each step and the mask-rate curve",
          el("table", {}, [
            el("thead", {}, [row(head, "th")]),
            el("tbody", {}, [row(means), row(curve)])
          ])
        ),
        el("p", { class: "oe-note oe-range" }, [
          "Smallest and largest total over all orders: " + number(Math.min.apply(null, totals), 10) +
            " and " + number(Math.max.apply(null, totals), 10) + "."
        ])
      );
    }

    function picture(lines, mean) {
      var wide = Math.max(260, Math.min(680, root.clientWidth - 36));
      var high = 250;
      var left = 50, right = 14, top = 14, bottom = 46;
      var lowest = Math.min.apply(null, lines.map(function (line) { return Math.min.apply(null, line); }));
      var gap = [0.1, 0.25, 0.5, 1, 2, 5, 10].find(function (g) { return -lowest / g <= 6; }) || -lowest;
      var floor = -gap * Math.ceil(-lowest / gap);
      function px(t) {
        return D === 1 ? left : left + 16 + ((wide - left - right - 32) * t) / (D - 1);
      }
      function py(v) {
        return top + ((high - top - bottom) * v) / floor;
      }
      function path(values) {
        return values.map(function (v, t) {
          return (t ? "L" : "M") + px(t).toFixed(1) + " " + py(v).toFixed(1);
        }).join(" ");
      }
      var out = svg("svg", {
        width: wide, height: high, viewBox: "0 0 " + wide + " " + high, role: "img",
        "aria-label": "Term against step for all " + lines.length +
          " orders; the mean at each step is given in the table below."
      });
      for (var v = 0; v >= floor - 1e-9; v -= gap) {
        out.append(
          svg("line", { class: "oe-gridline", x1: left, x2: wide - right, y1: py(v), y2: py(v) }),
          svg("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, number(v, gap < 0.5 ? 2 : 1))
        );
      }
      out.append(svg("line", { class: "oe-axis", x1: left, x2: left, y1: top, y2: high - bottom }));
      mean.forEach(function (_, t) {
        out.append(svg("text", { x: px(t), y: high - bottom + 18, "text-anchor": "middle" }, "M = " + (D - t)));
      });
      out.append(
        svg("text", { x: (left + wide - right) / 2, y: high - 8, "text-anchor": "middle" },
          "M = coordinates still hidden; terms in nats")
      );
      lines.forEach(function (line) {
        out.append(svg("path", { class: "oe-one", d: path(line) }));
      });
      out.append(svg("path", { class: "oe-mean", d: path(mean) }));
      mean.forEach(function (v, t) {
        out.append(svg("circle", { class: "oe-mean-dot", cx: px(t), cy: py(v), r: 5 }));
      });
      if (order.length) out.append(svg("path", { class: "oe-mine", d: path(termsAlong(data, order)) }));
      return out;
    }

    draw();
    var width = root.clientWidth;
    window.addEventListener("resize", function () {
      if (overlay && root.clientWidth !== width) drawAll();
      width = root.clientWidth;
    });
    root.dataset.ready = "true";
  }

  function start() {
    document.querySelectorAll(".order-explorer").forEach(function (root) {
      var source = root.querySelector("script.order-explorer-data");
      if (!source) return;
      var data = null;
      try {
        data = JSON.parse(source.textContent);
      } catch (error) {
        return; // the static table in the page stays
      }
      if (isUsable(data)) Explorer(root, data);
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
