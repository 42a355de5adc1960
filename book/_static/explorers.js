/* What the book's explorers share: nodes, numbers, sliders, a small chart, and how they start.
 *
 * An explorer is a <div class="explorer KIND"> with its numbers, which a cell emitted, in a
 * <script type="application/json" class="KIND-data"> and a <div class="explorer-static"> that says
 * the same without JavaScript. That one is hidden on the screen, and printed in the explorer's place.
 */
window.explorers = (function () {
  "use strict";

  var SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    Object.keys(attributes || {}).forEach(function (key) {
      node.setAttribute(key, attributes[key]);
    });
    (children || []).forEach(function (child) {
      node.append(child);
    });
    return node;
  }
  function el(tag, attributes, children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function svg(tag, attributes, text) {
    return fill(document.createElementNS(SVG, tag), attributes, text === undefined ? [] : [text]);
  }
  function number(value, digits) {
    var text = Math.abs(value).toFixed(digits);
    return (value < 0 && Number(text) !== 0 ? "\u2212" : "") + text;
  }
  function sum(values) {
    return values.reduce(function (a, b) {
      return a + b;
    }, 0);
  }

  /** Title, help and a live region; `say` fills the last. */
  function shell(root, id, title, help) {
    var live = el("p", { class: "oe-note oe-live", "aria-live": "polite", role: "status" });
    root.setAttribute("role", "group");
    root.setAttribute("aria-labelledby", id + "-title");
    root.append(
      el("p", { class: "oe-title", id: id + "-title" }, [title]),
      el("p", { class: "oe-help" }, [help])
    );
    return {
      live: live,
      say: function (text) {
        live.textContent = text;
      }
    };
  }

  function button(text, handler) {
    var node = el("button", { type: "button" }, [text]);
    node.addEventListener("click", handler);
    return node;
  }

  /** A row of named numbers: {key: name} gives {node, set(key, text)}. */
  function sums(names) {
    var values = {};
    var boxes = Object.keys(names).map(function (key) {
      values[key] = el("dd", { "data-sum": key });
      return el("div", {}, [el("dt", {}, [names[key]]), values[key]]);
    });
    return {
      node: el("dl", { class: "oe-sums" }, boxes),
      set: function (key, text) {
        values[key].textContent = text;
      }
    };
  }

  /** A labelled slider; `show` words its position, `moved(final)` is called as it moves. */
  function slider(name, text, range, show, moved) {
    var input = el("input", { type: "range", "data-slider": name, min: range[0], max: range[1], step: range[2] });
    var shown = el("b", {}); // an output would take the label that is for the slider
    function update() {
      shown.textContent = show(Number(input.value));
      input.setAttribute("aria-valuetext", shown.textContent);
    }
    ["input", "change"].forEach(function (kind) {
      input.addEventListener(kind, function () {
        update();
        moved(kind === "change");
      });
    });
    return {
      node: el("label", { class: "oe-slider" }, [el("span", {}, [text + " ", shown]), input]),
      get: function () {
        return Number(input.value);
      },
      set: function (value, max) {
        if (max !== undefined) input.max = max;
        input.value = value;
        update();
      }
    };
  }

  /** An empty chart over x and y (both [from, to]) with gridlines at round numbers. */
  function chart(root, label, high, x, y, xText, yText) {
    var wide = Math.max(260, Math.min(680, root.clientWidth - 36));
    var left = 46, right = 14, top = yText ? 26 : 12, bottom = 42;
    function px(v) {
      return left + ((wide - left - right) * (v - x[0])) / (x[1] - x[0]);
    }
    function py(v) {
      return top + ((high - top - bottom) * (y[1] - v)) / (y[1] - y[0]);
    }
    function path(points) {
      return points.map(function (p, k) {
        return (k ? "L" : "M") + px(p[0]).toFixed(1) + " " + py(p[1]).toFixed(1);
      }).join("");
    }
    function ticks(range, most) {
      var span = range[1] - range[0], unit = Math.pow(10, Math.floor(Math.log10(span / most)));
      var step = unit * [1, 2, 5, 10].find(function (k) { return span / (k * unit) <= most; });
      var digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), out = [];
      for (var k = Math.ceil(range[0] / step - 1e-9); k * step <= range[1] + 1e-9 * span; k++) {
        out.push([k * step, number(k * step, digits)]);
      }
      return out;
    }
    var node = svg("svg", {
      width: wide, height: high, viewBox: "0 0 " + wide + " " + high, role: "img", "aria-label": label
    });
    ticks(y, 5).forEach(function (tick) {
      node.append(
        svg("line", { class: "oe-gridline", x1: left, x2: wide - right, y1: py(tick[0]), y2: py(tick[0]) }),
        svg("text", { x: left - 6, y: py(tick[0]) + 4, "text-anchor": "end" }, tick[1])
      );
    });
    ticks(x, 6).forEach(function (tick) {
      node.append(svg("text", { x: px(tick[0]), y: high - bottom + 17, "text-anchor": "middle" }, tick[1]));
    });
    node.append(
      svg("line", { class: "oe-axis", x1: left, x2: left, y1: top, y2: high - bottom }),
      svg("text", { x: (left + wide - right) / 2, y: high - 6, "text-anchor": "middle" }, xText),
      svg("text", { x: 4, y: 14 }, yText)
    );
    function add(tag, attributes, text) {
      var made = svg(tag, attributes, text);
      node.append(made);
      return made;
    }
    return {
      node: node, px: px, py: py, path: path, add: add,
      line: function (name, points) {
        return add("path", { class: name, d: path(points) });
      }
    };
  }

  /** What the colors of a chart mean: rows [class of the shape, words]. */
  function legend(rows) {
    return el("ul", { class: "oe-legend" }, rows.map(function (row) {
      var key = svg("svg", { width: 26, height: 16, viewBox: "0 0 26 16", "aria-hidden": "true" });
      key.append(svg("rect", { class: row[0], x: 2, y: 2, width: 22, height: 12 }));
      return el("li", {}, [key, el("span", {}, [row[1]])]);
    }));
  }

  /** Call `draw` again when the width of `root` has changed. */
  function onWidth(root, draw) {
    var width = root.clientWidth;
    window.addEventListener("resize", function () {
      if (root.clientWidth !== width) draw();
      width = root.clientWidth;
    });
  }

  /** Make every explorer of a kind whose numbers are as they should be. */
  function start(kind, usable, make) {
    document.querySelectorAll("." + kind).forEach(function (root, k) {
      var source = root.querySelector("script." + kind + "-data");
      var fixed = root.querySelector(".explorer-static");
      var data = null;
      try {
        data = JSON.parse(source.textContent);
        if (!usable(data)) return;
      } catch (error) {
        return; // what stands in the page stays
      }
      root.replaceChildren(fixed || "");
      make(root, data, kind + "-" + k);
      root.dataset.ready = "true";
    });
  }

  return {
    el: el, svg: svg, number: number, sum: sum, shell: shell, button: button, sums: sums,
    slider: slider, chart: chart, legend: legend, onWidth: onWidth, start: start
  };
})();
