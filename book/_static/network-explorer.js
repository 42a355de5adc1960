/* The network explorer: hide symbols of the known language and see what the network of chapter 11
 * says about them beside the exact source; reveal them in an order and watch both add up.
 *
 * Its numbers, in <script class="network-explorer-data"> (see explorers.js):
 *   letters     the V symbols, as one word
 *   source      {initial, transition, emission} of the hidden Markov source
 *   texts       sequences of D symbols, as words
 *   start       which positions of a text are hidden at first: a word of D zeros and ones
 *   checks      rows {x, hidden, q, p}: the package's log q and log p of each hidden symbol, with
 *               the network's weights in half precision
 *   tolerance   by how many nats an answer may differ from them; else the explorer stops
 *
 * The weights, and the matrices of networks/matrices.js, are a file of their own,
 * known-language-weights.js, made when the site is built. It is a script and not data, because pages that are opened from a folder may load nothing else; and it
 * is loaded when the explorer comes near the window.
 */
(function () {
  "use strict";

  var shared = window.explorers;
  var el = shared.el, number = shared.number, sum = shared.sum;
  var WEIGHTS = document.currentScript.src.replace(/[^/]*$/, "known-language-weights.js");
  var NEAR = "800px"; // how far from the window the weights are asked for
  var HEADS = 4;
  var STEP_PAUSE = 220; // milliseconds between the steps of an order
  var MOST_ORDERS = 400;

  // ---- the network ------------------------------------------------------

  /** {name: weights} of {shapes: {name: shape}, half: base64 of all of them, one after the other}. */
  function decoded(packed) {
    var kit = window.matrices(), values = kit.halves(kit.bytes(packed.half)), at = 0, weights = {};
    Object.keys(packed.shapes).forEach(function (name) {
      var size = packed.shapes[name].reduce(function (a, b) { return a * b; }, 1);
      weights[name] = values.slice(at, at += size);
    });
    return weights;
  }

  /** A function of (x, hidden, wanted): log q of each token at each wanted position. */
  function Network(weights) {
    var kit = window.matrices();
    var words = weights["bert.embeddings.word_embeddings.weight"];
    var places = weights["bert.embeddings.position_embeddings.weight"];
    var kind = weights["bert.embeddings.token_type_embeddings.weight"];
    var width = kind.length, mask = words.length / width - 1;

    function linear(name, x) {
      var weight = weights[name + ".weight"], bias = weights[name + ".bias"];
      return kit.linear(x, weight.length / bias.length, weight, bias);
    }
    function normalized(name, x) {
      return kit.normalized(x, weights[name + ".weight"], weights[name + ".bias"], 1e-12);
    }

    function layer(depth, states, positions) {
      var name = "bert.encoder.layer." + depth, here = kit.rows(states, width, positions);
      var keys = linear(name + ".attention.self.key", states);
      var values = linear(name + ".attention.self.value", states);
      var queries = linear(name + ".attention.self.query", here);
      var found = kit.attended(queries, keys, values, positions, width, HEADS, Infinity);
      var seen = normalized(name + ".attention.output.LayerNorm",
        kit.plus(linear(name + ".attention.output.dense", found), here));
      var inner = linear(name + ".intermediate.dense", seen).map(kit.gelu);
      return normalized(name + ".output.LayerNorm", kit.plus(linear(name + ".output.dense", inner), seen));
    }

    return function (x, hidden, wanted) {
      var every = x.map(function (_, j) { return j; });
      var shown = x.map(function (symbol, j) { return hidden[j] ? mask : symbol; });
      var states = kit.plus(kit.rows(words, width, shown), places).map(function (value, k) {
        return value + kind[k % width];
      });
      states = layer(0, normalized("bert.embeddings.LayerNorm", states), every);
      var last = linear("cls.predictions.transform.dense", layer(1, states, wanted)).map(kit.gelu);
      last = normalized("cls.predictions.transform.LayerNorm", last);
      var logits = kit.linear(last, width, words, weights["cls.predictions.bias"]), size = mask + 1;
      return wanted.map(function (_, k) { return kit.logSoftmax(logits.subarray(k * size, (k + 1) * size)); });
    };
  }

  // ---- the source -------------------------------------------------------

  /** The exact recursion of chapter 11, forward and backward, scaled at every step. */
  function Source(tables) {
    var Q = tables.initial.length, V = tables.emission[0].length;

    function scaled(message) {
      var total = sum(message);
      return message.map(function (v) { return v / total; });
    }
    function seen(x, hidden, j, z) {
      return hidden[j] ? 1 : tables.emission[z][x[j]];
    }

    return {
      /** log p of each symbol at each hidden position; null at the others. */
      answers: function (x, hidden) {
        var forward = [], backward = [], D = x.length, j;
        for (j = 0; j < D; j++) {
          forward.push(!j ? tables.initial : scaled(tables.initial.map(function (_, to) {
            return sum(tables.initial.map(function (_, z) {
              return forward[j - 1][z] * seen(x, hidden, j - 1, z) * tables.transition[z][to];
            }));
          })));
        }
        for (j = D - 1; j >= 0; j--) {
          backward[j] = j === D - 1 ? tables.initial.map(function () { return 1; }) :
            scaled(tables.initial.map(function (_, z) {
              return sum(tables.initial.map(function (_, to) {
                return tables.transition[z][to] * seen(x, hidden, j + 1, to) * backward[j + 1][to];
              }));
            }));
        }
        return x.map(function (_, at) {
          if (!hidden[at]) return null;
          var state = scaled(forward[at].map(function (v, z) { return v * backward[at][z]; }));
          var out = [];
          for (var v = 0; v < V; v++) {
            out.push(Math.log(sum(state.map(function (s, z) { return s * tables.emission[z][v]; }))));
          }
          return out;
        });
      },
      /** log p(x). */
      logProbability: function (x) {
        var belief = tables.initial, total = 0;
        x.forEach(function (symbol) {
          var joint = belief.map(function (b, z) { return b * tables.emission[z][symbol]; });
          total += Math.log(sum(joint));
          joint = scaled(joint);
          belief = belief.map(function (_, to) {
            return sum(joint.map(function (b, z) { return b * tables.transition[z][to]; }));
          });
        });
        return total;
      },
      sample: function (D) {
        function pick(shares) {
          var left = Math.random(), k = 0;
          while (k < shares.length - 1 && (left -= shares[k]) >= 0) k++;
          return k;
        }
        var x = [], state = pick(tables.initial);
        for (var j = 0; j < D; j++) {
          x.push(pick(tables.emission[state]));
          state = pick(tables.transition[state]);
        }
        return x;
      }
    };
  }

  function bits(word) {
    return Array.from(word, function (c) { return c === "1"; });
  }
  function symbols(word, letters) {
    return Array.from(word, function (c) { return letters.indexOf(c); });
  }

  /** The largest distance of an answer from the package's, in nats. */
  function distance(data, network, source) {
    var worst = 0;
    data.checks.forEach(function (row) {
      var x = symbols(row.x, data.letters), hidden = bits(row.hidden);
      var wanted = x.map(function (_, j) { return j; }).filter(function (j) { return hidden[j]; });
      var q = network(x, hidden, wanted), p = source.answers(x, hidden);
      wanted.forEach(function (j, k) {
        [q[k][x[j]] - row.q[k], p[j][x[j]] - row.p[k]].forEach(function (off) {
          worst = Math.abs(off) <= worst ? worst : Math.abs(off); // NaN is the worst, and stays
        });
      });
    });
    return worst;
  }

  /** The logarithm of the mean of the exponentials. */
  function logMeanExp(values) {
    var most = Math.max.apply(null, values);
    return most + Math.log(sum(values.map(function (v) { return Math.exp(v - most); })) / values.length);
  }

  // ---- the explorer -----------------------------------------------------

  function Explorer(root, data, id, network, source) {
    var D = data.texts[0].length, every = Array.from({ length: D }, function (_, j) { return j; });
    var x, truth, hidden, walk, tried, timer = null;
    var still = window.matchMedia("(prefers-reduced-motion: reduce)");

    var frame = shared.shell(root, id, "Network explorer",
      "A sequence of " + D + " symbols from the source of this chapter. Ask the network and the exact " +
        "source about the same hidden symbols, then let both add up along an order. Everything is in " +
        "nats, and is computed in this page.");
    var say = frame.say;

    function letter(j) {
      return data.letters[x[j]];
    }
    function signed(value) {
      return (Number(value.toFixed(3)) > 0 ? "+" : "") + number(value, 3);
    }
    function group(name, nodes) {
      return el("div", { class: "oe-actions", role: "group", "aria-label": name }, nodes);
    }
    function row(cells, tag) {
      return el("tr", {}, cells.map(function (text, k) {
        var attributes = tag === "th" ? { scope: "col" } : k === 0 ? { scope: "row" } : {};
        return el(tag === "th" || k === 0 ? "th" : "td", attributes, [text]);
      }));
    }
    function table(name, head, body) {
      return el("div", { class: "oe-scroll", tabindex: "0", role: "region", "aria-label": name }, [
        el("table", {}, [el("thead", {}, [row(head, "th")]), el("tbody", {}, body)])
      ]);
    }
    /** A button for each position; `press` is told which. */
    function strip(name, press) {
      var cards = every.map(function (j) {
        var card = el("button", { type: "button", class: "oe-symbol" }, [
          el("span", { class: "oe-place" }, [String(j + 1)]), el("span", { class: "oe-letter" })
        ]);
        card.addEventListener("click", function () { press(j); });
        return card;
      });
      return {
        node: el("div", { class: "oe-symbols", role: "group", "aria-label": name }, cards),
        show: function (covered, toggles) {
          cards.forEach(function (card, j) {
            card.dataset.hidden = covered[j];
            card.lastChild.textContent = covered[j] ? "?" : letter(j);
            card.setAttribute("aria-label", "Position " + (j + 1) + ": " +
              (covered[j] ? "? (hidden)" : letter(j)));
            if (toggles) card.setAttribute("aria-pressed", covered[j]);
            else card.setAttribute("aria-disabled", !covered[j]);
          });
        }
      };
    }

    var texts = data.texts.map(function (word, k) {
      return shared.button("Text " + (k + 1), function () {
        take(symbols(word, data.letters), k);
        say("Text " + (k + 1) + ": " + word + ". Its log-probability by the source is " + number(truth, 3) + ".");
      });
    });
    texts.push(shared.button("Another text", function () {
      take(source.sample(D), data.texts.length);
      say("A new text from the source: " + x.map(function (_, j) { return letter(j); }).join("") +
        ". Its log-probability by the source is " + number(truth, 3) + ".");
    }));

    var asked = strip("Symbols to hide", function (j) {
      hidden[j] = !hidden[j];
      drawAsked();
      if (!hidden[j]) return say("Position " + (j + 1) + " is visible again: " + letter(j) + ".");
      var q = network(x, hidden, [j])[0][x[j]], p = source.answers(x, hidden)[j][x[j]];
      say("Position " + (j + 1) + " is hidden. To its symbol, " + letter(j) + ", the network gives log q = " +
        number(q, 3) + ", the source log p = " + number(p, 3) + ".");
    });
    function hide(text, choose) {
      return shared.button(text, function () {
        hidden = every.map(choose);
        drawAsked();
        var count = hidden.filter(Boolean).length;
        say(count + " of " + D + " symbols are hidden.");
      });
    }
    var answers = el("div", { class: "oe-answers" });
    root.append(
      group("Texts", texts),
      el("p", { class: "oe-subtitle" }, ["Hide symbols and ask"]),
      asked.node,
      group("What to hide", [
        hide("Hide all", function () { return true; }),
        hide("Show all", function () { return false; }),
        hide("Hide at random", function () { return Math.random() < 0.4; })
      ]),
      answers
    );

    // ---- asking -----------------------------------------------------------
    function drawAsked() {
      asked.show(hidden, true);
      var wanted = every.filter(function (j) { return hidden[j]; });
      if (!wanted.length) {
        return answers.replaceChildren(
          el("p", { class: "oe-note" }, ["Nothing is hidden. Choose a symbol to hide it."])
        );
      }
      var q = network(x, hidden, wanted), p = source.answers(x, hidden);
      function best(logs) {
        var shown = Array.from(logs).slice(0, data.letters.length), most = Math.max.apply(null, shown);
        return data.letters[shown.indexOf(most)] + " (" + Math.exp(most).toFixed(3) + ")";
      }
      var most = Math.max.apply(null, wanted.map(function (j, k) {
        return Math.exp(Math.max(Math.max.apply(null, q[k]), Math.max.apply(null, p[j])));
      }));
      var full = most <= 0.5 ? 0.5 : 1; // the probability of a full chart
      var rows = wanted.map(function (j, k) {
        var symbol = x[j];
        return row([j + 1 + ": " + letter(j), number(q[k][symbol], 3), number(p[j][symbol], 3),
          signed(q[k][symbol] - p[j][symbol]), best(q[k]), best(p[j])]);
      });
      answers.replaceChildren(
        el("div", { class: "oe-small" }, wanted.map(function (j, k) {
          return el("div", { class: "oe-guess" }, [
            el("p", {}, ["Position " + (j + 1) + ": " + letter(j)]), guesses(j, q[k], p[j], full)
          ]);
        })),
        el("p", { class: "oe-note" }, [
          "Probability of each symbol, a full chart being " + full.toFixed(1) + ". Left of each pair, outlined: the " +
            "network. Right, filled: the source. The true symbol is underlined."
        ]),
        table("What the network and the source say of each hidden symbol",
          ["Hidden", "Network log q", "Source log p", "Difference", "Network's guess", "Source's guess"], rows)
      );
    }

    /** Two bars a symbol. */
    function guesses(j, q, p, full) {
      var V = data.letters.length, wide = 168, high = 96, base = 76, top = 6, slot = wide / V;
      var node = shared.svg("svg", {
        width: wide, height: high, viewBox: "0 0 " + wide + " " + high, role: "img",
        "aria-label": "Probabilities of the symbols at position " + (j + 1) +
          "; those of the true one and of the best guesses are in the table below."
      });
      for (var v = 0; v < V; v++) {
        [["oe-net-bar", q], ["oe-source-bar", p]].forEach(function (pair, k) {
          var tall = Math.max(0.5, ((base - top) * Math.exp(pair[1][v])) / full);
          node.append(shared.svg("rect", {
            class: pair[0], x: v * slot + 1.5 + 5.5 * k, y: base - tall, width: 5, height: tall
          }));
        });
        var is = v === x[j];
        node.append(shared.svg("text", {
          class: is ? "oe-true" : "", x: (v + 0.5) * slot, y: base + 15, "text-anchor": "middle"
        }, data.letters[v]));
      }
      node.append(shared.svg("line", { class: "oe-axis", x1: 0, x2: wide, y1: base, y2: base }));
      return node;
    }

    // ---- walking ------------------------------------------------------------
    var walked = strip("Symbols to reveal", function (j) {
      stop();
      if (walk.order.indexOf(j) >= 0) {
        return say("Position " + (j + 1) + " is already revealed." +
          (walk.order.length === D ? " Press My own order to begin again." : ""));
      }
      if (walk.name !== "My own") walk.name = "My own"; // from here on
      step(j);
      drawWalk();
      tell();
    });
    var own = shared.button("My own order", function () {
      stop();
      begin("My own");
      drawWalk();
      say("All " + D + " symbols are hidden. Reveal them one by one.");
    });
    function way(text, next) {
      return shared.button(text, function () { play(text, next); });
    }
    var ways = [
      way("Random", function () {
        var left = every.filter(function (j) { return walk.order.indexOf(j) < 0; });
        return left[Math.floor(Math.random() * left.length)];
      }),
      way("Left to right", function () { return walk.order.length; }),
      way("Most certain first", surest),
      own,
      shared.button("20 random orders", many)
    ];
    var sums = shared.sums({
      truth: "Source, every order", running: "Network, this order", area: "Area", mixture: "Mixture", spread: "Spread"
    });
    var picture = el("div", { class: "oe-picture" });
    var steps = el("div", {}), tables = el("div", { class: "oe-tried" });
    root.append(
      el("p", { class: "oe-subtitle" }, ["Reveal them in an order, and add up"]),
      el("p", { class: "oe-help" }, [
        "At first all symbols are hidden. Each step reveals one and adds its log-probability given " +
          "those before it. Choose an order, or make your own by pressing the symbols. (Most certain first: the " +
          "network says of which hidden symbol it is surest.)"
      ]),
      group("Orders", ways), walked.node, frame.live, sums.node,
      el("p", { class: "oe-note oe-count-note" }), picture, steps, tables
    );
    var countNote = root.querySelector(".oe-count-note");

    /** The hidden position of whose symbol the network is surest. */
    function surest() {
      var covered = uncovered(), left = every.filter(function (j) { return covered[j]; });
      var heights = network(x, covered, left).map(function (logs) {
        return Math.max.apply(null, Array.from(logs).slice(0, data.letters.length));
      });
      return left[heights.indexOf(Math.max.apply(null, heights))];
    }
    function uncovered() {
      return every.map(function (j) { return walk.order.indexOf(j) < 0; });
    }
    function begin(name) {
      walk = { name: name, order: [], q: [], p: [] };
    }
    function step(j) {
      var covered = uncovered();
      walk.q.push(network(x, covered, [j])[0][x[j]]);
      walk.p.push(source.answers(x, covered)[j][x[j]]);
      walk.order.push(j);
      if (walk.order.length < D) return;
      tried = tried.filter(function (each) { // the same order again, unless it was drawn
        return each.name === "Random" || String(each.order) !== String(walk.order) || each.name !== walk.name;
      });
      tried.unshift(walk);
    }
    function tell() {
      var last = walk.order.length - 1;
      var text = "Step " + (last + 1) + ", position " + (walk.order[last] + 1) + ": " + letter(walk.order[last]) +
        ". Network " + number(walk.q[last], 3) + ", source " + number(walk.p[last], 3) + ".";
      if (last === D - 1) {
        text = walk.name + ": the network's terms add up to " + number(sum(walk.q), 3) + ", the source's to " +
          number(sum(walk.p), 3) + ", as in every order.";
      }
      say(text);
    }
    function stop() {
      if (timer !== null) window.clearTimeout(timer);
      timer = null;
    }
    function play(name, next) {
      stop();
      if (name === "Random" && drawn().length >= MOST_ORDERS) return say("That is enough random orders.");
      begin(name);
      (function go() {
        timer = null;
        step(next());
        if (walk.order.length === D || !still.matches) drawWalk();
        if (walk.order.length === D) return tell();
        if (still.matches) go();
        else timer = window.setTimeout(go, STEP_PAUSE);
      })();
    }
    function many() {
      stop();
      var left = Math.min(20, MOST_ORDERS - drawn().length);
      if (left <= 0) return say("That is enough random orders.");
      (function go() { // one order at a time, so that the page goes on answering
        timer = null;
        begin("Random");
        shuffled().forEach(step);
        if (--left % 5 === 0) drawWalk();
        if (left > 0) timer = window.setTimeout(go, 0);
        else tellMany();
      })();
    }
    function shuffled() {
      var order = every.slice();
      for (var k = D - 1; k > 0; k--) {
        var other = Math.floor(Math.random() * (k + 1)), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
      }
      return order;
    }
    function drawn() {
      return tried.filter(function (each) { return each.name === "Random"; });
    }
    function tellMany() {
      var totals = drawn().map(function (each) { return sum(each.q); });
      say(totals.length + " random orders drawn. Their totals by the network run from " +
        number(Math.min.apply(null, totals), 3) + " to " + number(Math.max.apply(null, totals), 3) +
        "; by the source each is " + number(truth, 3) + ". The area is " + number(sum(totals) / totals.length, 3) +
        ", the mixture " + number(logMeanExp(totals), 3) + ".");
    }

    function drawWalk() {
      var random = drawn(), totals = random.map(function (each) { return sum(each.q); }), N = totals.length;
      var mean = sum(totals) / N;
      walked.show(uncovered(), false);
      ways.slice(0, 4).forEach(function (button, k) {
        button.setAttribute("aria-pressed", (k === 3 ? "My own" : button.textContent) === walk.name);
      });
      sums.set("truth", number(truth, 3));
      sums.set("running", number(sum(walk.q), 3));
      sums.set("area", N ? number(mean, 3) : "none yet");
      sums.set("mixture", N ? number(logMeanExp(totals), 3) : "none yet");
      var spread = Math.sqrt(sum(totals.map(function (t) { return (t - mean) * (t - mean); })) / (N - 1));
      sums.set("spread", N > 1 ? spread.toFixed(3) : "none yet");
      countNote.textContent = N
        ? "From " + N + (N > 1 ? " random orders" : " random order") + ": the area is the mean of their totals" +
          (N > 1 ? ", with a standard error of " + (spread / Math.sqrt(N)).toFixed(3) : "") +
          ", the mixture the logarithm of their mean probability, the spread their standard deviation."
        : "Area, mixture and spread need random orders: draw one, or twenty.";
      picture.replaceChildren(sumChart(), fanChart(totals, mean));
      if (N) picture.append.apply(picture, curveChart(random));
      drawTables();
    }

    function running(values) {
      var at = 0;
      return [[0, 0]].concat(values.map(function (v, t) { return [t + 1, (at += v)]; }));
    }
    function caption(text) {
      return el("p", { class: "oe-note" }, [text]);
    }

    function sumChart() {
      var high = -Math.min(truth, sum(walk.q)) * 1.12; // surprise is drawn upward
      var c = shared.chart(root, "Running surprise of the network and of the source along this order; the numbers are " +
        "in the table below.", 230, [0, D], [0, high], "symbols revealed", "surprise so far, nats");
      function climbing(values) {
        return running(values.map(function (v) { return -v; }));
      }
      c.line("oe-rule", [[0, -truth], [D, -truth]]);
      c.add("text", { x: c.px(0.2), y: c.py(-truth) - 6 }, "\u2212 log p(x)");
      c.line("oe-source-line", climbing(walk.p));
      c.line("oe-net-line", climbing(walk.q));
      climbing(walk.q).forEach(function (point) {
        c.add("circle", { class: "oe-net-dot", cx: c.px(point[0]), cy: c.py(point[1]), r: 3 });
      });
      return el("div", {}, [c.node, caption(
        "Wide line: the source. Narrow line with dots: the network. Dashed: \u2212log p(x), where the source ends in every order."
      )]);
    }

    function fanChart(totals, mean) {
      function off(each) {
        return running(each.q.map(function (v, t) { return v - each.p[t]; }));
      }
      var shown = tried.slice(0, 60).map(off), mine = off(walk), heights = [-0.2, 0.2];
      shown.concat([mine]).forEach(function (line) {
        line.forEach(function (point) { heights.push(point[1]); });
      });
      var low = Math.min.apply(null, heights), high = Math.max.apply(null, heights), pad = 0.08 * (high - low);
      var c = shared.chart(root, "Network minus source along each order tried; where they end is in the table below.",
        250, [0, D + 3.2], [low - pad, high + pad], "symbols revealed", "log q \u2212 log p so far, nats");
      shown.forEach(function (line) { c.line("oe-one", line); });
      c.line("oe-source-line", [[0, 0], [D, 0]]);
      c.line("oe-net-line", mine);
      var marks = [[0, "log p(x)"]];
      if (totals.length) {
        marks.push([mean - truth, "area"], [logMeanExp(totals) - truth, "mixture"]);
        c.line("oe-rule", [[D - 4, mean - truth], [D, mean - truth]]);
        c.line("oe-rule", [[D - 4, marks[2][0]], [D, marks[2][0]]]);
      }
      var below = -Infinity; // labels one below the other
      marks.sort(function (a, b) { return b[0] - a[0]; }).forEach(function (mark) {
        below = Math.max(below + 14, c.py(mark[0]) + 4);
        c.add("text", { x: c.px(D) + 6, y: below }, mark[1]);
      });
      return el("div", {}, [c.node, caption(
        "How far the network has moved from the source: below zero it lacks something. At the right end stands what this " +
          "order's total lacks or has too much. Thin: the orders tried. The source is the level line: all its orders " +
          "end at log p(x)."
      )]);
    }

    function curveChart(random) {
      // With M hidden, step D - M + 1 is taken: the mean of its terms over random orders is S(x; M).
      function mean(which) {
        return every.map(function (k) {
          return [k + 1, -sum(random.map(function (each) { return each[which][D - 1 - k]; })) / random.length];
        });
      }
      var q = mean("q"), p = mean("p");
      var high = Math.max.apply(null, q.concat(p).map(function (point) { return point[1]; }));
      var c = shared.chart(root, "The mask-rate curves of network and source from the random orders drawn so far, as " +
        "surprise.", 240, [0.6, D + 0.4], [0, 1.06 * high], "hidden positions M", "surprise, \u2212S(x; M), nats");
      c.add("path", { class: "oe-net-area", d: c.path([[1, 0]].concat(q, [[D, 0]])) + "Z" });
      c.line("oe-source-line", p);
      c.line("oe-net-line", q);
      return [c.node, caption(
        "The mask-rate curve, from " + random.length + (random.length > 1 ? " random orders" : " random order") +
          " and the same masks for both, drawn as surprise. Narrow, shaded: the network; its sum over M is minus the area " +
          "above. Wide: the source; its sum is \u2212log p(x)" + (random.length > 1 ? ", however many orders" : " already") + "."
      )];
    }

    function path(order) {
      return order.map(function (j) { return j + 1; }).join(" ");
    }
    function drawTables() {
      steps.replaceChildren();
      tables.replaceChildren();
      if (walk.order.length) {
        var q = 0, p = 0;
        steps.append(
          el("p", { class: "oe-subtitle" }, ["This order, step by step"]),
          table("This order, step by step", ["Step: position", "Symbol", "Network", "Source", "Network's sum", "Source's sum"],
            walk.order.map(function (j, t) {
              q += walk.q[t];
              p += walk.p[t];
              return row([t + 1 + ": " + (j + 1), letter(j), number(walk.q[t], 3), number(walk.p[t], 3),
                number(q, 3), number(p, 3)]);
            }))
        );
      }
      if (!tried.length) return;
      var totals = tried.map(function (each) { return sum(each.q); });
      tables.append(
        el("p", { class: "oe-subtitle" }, ["Orders tried: " + tried.length]),
        table("Orders tried", ["Order", "Network", "Source", "Difference", "Positions, first revealed first"],
          tried.map(function (each, k) {
            return row([each.name, number(totals[k], 3), number(sum(each.p), 3), signed(totals[k] - sum(each.p)),
              path(each.order)]);
          })),
        el("p", { class: "oe-note oe-verdict" }, [
          tried.length < 2 ? "Try another order of the same text." :
            "One text. By the network from " + number(Math.min.apply(null, totals), 3) + " to " +
              number(Math.max.apply(null, totals), 3) + ", by the source " + number(truth, 3) + " each time."
        ])
      );
    }

    function take(sequence, which) {
      stop();
      x = sequence;
      truth = source.logProbability(x);
      hidden = bits(data.start);
      tried = [];
      begin("My own");
      texts.forEach(function (button, k) { button.setAttribute("aria-pressed", k === which); });
      drawAsked();
      drawWalk();
    }

    take(symbols(data.texts[0], data.letters), 0);
    shared.onWidth(root, function () { drawWalk(); });
  }

  // ---- how it starts ------------------------------------------------------

  function refuse(root, why) {
    root.append(el("p", { class: "oe-stopped", role: "status" }, ["The explorer has stopped: " + why]));
    root.dataset.stopped = "true";
  }

  function open(root, data, id, packed) {
    var network, source, off = NaN;
    try {
      network = Network(decoded(packed));
      source = Source(data.source);
      off = distance(data, network, source);
    } catch (error) {
      off = NaN; // what cannot be computed does not agree
    }
    if (!(off <= data.tolerance)) {
      return refuse(root, "in this browser the network or the source does not give the answers that the book's " +
        "package has stored, to within " + data.tolerance + " nats. The table above stands.");
    }
    root.replaceChildren(root.querySelector(".explorer-static") || "");
    Explorer(root, data, id, network, source);
    root.dataset.ready = "true";
  }

  document.querySelectorAll(".network-explorer").forEach(function (root, k) {
    var data = JSON.parse(root.querySelector("script.network-explorer-data").textContent);
    var watch = new IntersectionObserver(function (entries) {
      if (!entries.some(function (entry) { return entry.isIntersecting; })) return;
      watch.disconnect();
      var script = el("script", { src: WEIGHTS });
      script.addEventListener("load", function () {
        open(root, data, "network-explorer-" + k, window.knownLanguageWeights);
      });
      script.addEventListener("error", function () {
        refuse(root, "the network's weights could not be loaded. The table above stands.");
      });
      document.head.append(script);
    }, { rootMargin: NEAR });
    watch.observe(root);
  });

  shared.network = { decoded: decoded, Network: Network, Source: Source }; // for the tests
})();
