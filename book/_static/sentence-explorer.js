/* The sentence explorer: type a sentence, and see what the book's small BERT makes of it.
 *
 * Its numbers, in <script class="sentence-explorer-data"> (see explorers.js):
 *   text     the sentence at first
 *   pieces   its D word pieces
 *   answers  2^D rows: answers[s][j] = log q(x_j | x_R) where bit k of s says that piece k is in sight;
 *            null where j is itself in R
 *
 * So the first sentence needs no network. Tokenizer and network, small-bert.js, are made when the site is
 * built, and added when somebody begins to type. A worker made from their text computes: pages opened
 * from a folder may have no other. What is typed stays in the page, and is shown as text.
 */
(function () {
  "use strict";

  var shared = window.explorers;
  var el = shared.el, number = shared.number, sum = shared.sum;
  var NETWORK = document.currentScript.src.replace(/[^/]*$/, "small-bert.js");
  var CLS = 2, SEP = 3, MASK = 4, UNKNOWN = "[UNK]";
  var MOST_PIECES = 62; // with [CLS] and [SEP] 64, which is what the network has positions for
  var EVERY_ORDER = 6; // up to so many pieces every mask is tried
  var FIRST_ORDERS = 4; // of fewer there is no error to speak of
  var FEWEST_ORDERS = 8, ENOUGH = 0.5; // it stops when the error is so many nats
  var MOST_PASSES = 3000;
  var PAUSE = 300; // milliseconds without a keystroke, before the network is asked
  var TOLERANCE = 0.15; // nats: what rounding the weights to 8 bits does to an answer, and no more

  function link(text, address) {
    return el("a", { href: address }, [text]);
  }
  function some(count, name) {
    return count + " " + name + (count === 1 ? "" : "s");
  }
  function words(pieces) {
    return pieces.map(function (each) { return each.piece; }).join(" ");
  }
  function mean(values) {
    return sum(values) / values.length;
  }
  function deviation(values, less) {
    var middle = mean(values);
    return Math.sqrt(sum(values.map(function (v) { return (v - middle) * (v - middle); })) / (values.length - less));
  }
  function every(count) {
    return Array.from({ length: count }, function (_, k) { return k; });
  }
  function permutations(items) {
    return items.length < 2 ? [items] : [].concat.apply([], items.map(function (first, k) {
      var others = items.slice(0, k).concat(items.slice(k + 1));
      return permutations(others).map(function (rest) { return [first].concat(rest); });
    }));
  }

  // ---- a sentence -----------------------------------------------------------

  /** A text and its pieces. Unknown ones are shown to the network and not scored. */
  function Sentence(text, pieces) {
    var scored = pieces.filter(function (each) { return each.piece !== UNKNOWN; });
    var end = 0, bytes = 0, encoder = new TextEncoder();
    pieces.forEach(function (each, k) { // an unknown piece does not count, nor the space before it
      var to = k < pieces.length - 1 || each.piece === UNKNOWN ? each.end : text.length;
      if (each.piece !== UNKNOWN) bytes += encoder.encode(text.slice(end, to)).length;
      end = Math.max(end, to);
    });
    return {
      text: text, pieces: pieces, scored: scored, size: scored.length, bytes: bytes,
      answers: new Map(), // of each set of hidden pieces: log q of those that were asked for
      along: [] // the orders so far: log q of the piece that each step reveals
    };
  }

  /** Why a text has no score; nothing where it has one. */
  function refusal(sentence) {
    var special = sentence.scored.find(function (each) { return /^\[[A-Z]+\]$/.test(each.piece); });
    if (!sentence.pieces.length) return "Type a sentence: there is nothing to score yet.";
    if (special) return special.piece + " is a sign of the network's own: take it out.";
    if (!sentence.size) return "The network knows none of these signs: type a sentence in English letters.";
    if (sentence.pieces.length > MOST_PIECES) {
      return "This text has " + sentence.pieces.length + " pieces, and the network reads at most " + MOST_PIECES +
        ": take some words out.";
    }
    return "";
  }

  /** What a reader may wonder about. */
  function notes(sentence) {
    var unknown = sentence.pieces.length - sentence.size, out = [];
    if (unknown) out.push("The network does not know " + some(unknown, "piece") + ", and does not score " +
      (unknown === 1 ? "it." : "them."));
    if (/\S\s*[\r\n]\s*\S/.test(sentence.text)) out.push("Line breaks are read as spaces.");
    return out.join(" ");
  }

  /** Orders for sentences that share most of their pieces: what they share is revealed in one sequence. */
  function drawn(sentences) {
    var a = sentences[0].scored.map(function (each) { return each.id; }), at = a.map(Math.random);
    return sentences.map(function (sentence) {
      var b = sentence.scored.map(function (each) { return each.id; }), same = 0, tail = 0;
      var fewest = Math.min(a.length, b.length);
      while (same < fewest && a[same] === b[same]) same++;
      while (tail < fewest - same && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
      var time = b.map(function (_, j) {
        if (j >= b.length - tail) return at[j + a.length - b.length];
        return j < a.length - tail ? at[j] : Math.random();
      });
      return every(b.length).sort(function (i, j) { return time[i] - time[j]; });
    });
  }

  // ---- the network ------------------------------------------------------------

  var loading = null; // the promise of tokenizer and network, which all explorers of a page share

  function load() {
    loading = loading || new Promise(function (resolve, reject) {
      var script = el("script", { src: NETWORK });
      script.addEventListener("load", function () {
        try {
          var kit = window.smallBert, blob = new Blob([kit.worker()], { type: "text/javascript" });
          var worker = new Worker(URL.createObjectURL(blob)), waiting = new Map(), asked = 0;
          worker.addEventListener("message", function (event) {
            waiting.get(event.data.number).answered(event.data.answers);
            waiting.delete(event.data.number);
          });
          worker.addEventListener("error", function (event) {
            waiting.forEach(function (each) { each.refused(event); });
          });
          worker.postMessage({ packed: kit.packed });
          resolve({
            tokenize: kit.Tokenizer(kit.packed.vocabulary),
            ask: function (question) {
              return new Promise(function (answered, refused) {
                waiting.set(++asked, { answered: answered, refused: refused });
                worker.postMessage(Object.assign({ number: asked }, question));
              });
            }
          });
        } catch (error) {
          reject(error);
        }
      });
      script.addEventListener("error", reject);
      document.head.append(script);
    });
    return loading;
  }

  // ---- the explorer -----------------------------------------------------------

  function Explorer(root, data, id) {
    var network = null, turn = 0, passes = 0, timer = null, order = [], tried = [];
    var first = Sentence(data.text, data.pieces.map(function (piece, k) { return { piece: piece, id: -1 - k }; }));
    first.bytes = new TextEncoder().encode(data.text).length;
    data.answers.forEach(function (row, sight) {
      var hidden = every(first.size).filter(function (j) { return !(sight >> j & 1); });
      first.answers.set(String(hidden), new Map(hidden.map(function (j) { return [j, row[j]]; })));
    });
    var sentences = [first];

    var frame = shared.shell(root, id, "Type your sentence",
      "A small network reads it in your browser, and nothing that you type leaves this page.");
    var fields = [field("Your sentence"), field("A second sentence")];
    var compare = shared.button("Compare with a second sentence", function () {
      var isAlone = fields[1].node.hidden;
      put(fields[0].input.value, isAlone ? fields[0].input.value : undefined);
      if (isAlone) fields[1].input.focus();
      typed();
    });
    var share = link("Link to this sentence", "#");
    var alone = el("div", {}), stopped = el("p", { class: "oe-stopped", hidden: "" });
    var picture = el("div", { class: "oe-picture" }), difference = el("p", { class: "oe-note oe-difference", hidden: "" });
    var sums = [shared.sums({ score: "Log-score", bits: "Bits a byte", perplexity: "Perplexity", orders: "Orders" }),
      shared.sums({ score2: "Second log-score", bits2: "Bits a byte", perplexity2: "Perplexity", orders2: "Orders" })];
    var cards = el("div", { class: "oe-tokens", role: "group", "aria-label": "Pieces to reveal" });
    var steps = shared.sums({ term: "Latest piece", running: "Total so far", range: "Totals of your orders" });
    var one = shared.button("Reveal one", function () {
      if (order.length === sentences[0].size) order = [];
      reveal(hidden()[0]);
    });
    var rest = shared.button("Reveal the rest at random", function () {
      var left = hidden().sort(function () { return Math.random() - 0.5; });
      if (!left.length) {
        order = [];
        left = drawn([sentences[0]])[0];
      }
      revealAll(left);
    });
    var again = shared.button("Hide all", function () {
      order = [];
      drawReveal();
      frame.say("All pieces are hidden.");
    });
    var results = el("div", {}, [
      el("p", { class: "oe-subtitle" }, ["Each piece, when it alone is hidden"]),
      alone,
      note(["The network reads ", link("pieces", "12-bert.html#sec-12-tokens"), " of words. Under each stands its surprise, " +
        "\u2212log q in nats, when ", link("it alone is hidden", "12-bert.html#sec-12-pseudo"), "."]),
      el("p", { class: "oe-subtitle" }, ["Every number of hidden pieces"]),
      picture, sums[0].node, sums[1].node, difference,
      note(["A height is the ", link("mean surprise", "03-mask-rate-curve.html"), " at a piece when so many are hidden. " +
        "With more than six pieces it is an estimate from a few random orders, also with one hidden, and the gray line is its " +
        "standard error. In the sum most of these errors cancel. Another visit draws other orders."]),
      note(["The sum of the heights, with a minus, is the ", link("log-score", "04-orders.html#sec-04-network"),
        " in nats: the mean over orders of the log-probability of the whole sentence. Behind \u00b1 stands its standard error."]),
      note([link("Bits a byte", "scoring-guide.html"), " spread it over the letters. ",
        link("Perplexity", "12-bert.html#sec-12-pseudo"), " says among how many pieces a fair choice is as uncertain."]),
      el("p", { class: "oe-subtitle" }, ["Reveal one by one"]),
      el("div", { class: "oe-actions", role: "group", "aria-label": "Ways to reveal" }, [one, rest, again]),
      cards, steps.node,
      note(["Each piece adds its log-probability, given what is in sight. ",
        link("Another order has another total", "04-orders.html#sec-04-network"),
        ", because the guesses of a network do not quite fit together."])
    ]);
    root.append(
      fields[0].node, fields[1].node, el("div", { class: "oe-actions" }, [compare, share]), stopped, frame.live, results,
      note(["The network is the book's ", link("small BERT", "12-bert.html#sec-12-recorded"), ": 2.5 million weights, " +
        "trained on 21 English books of the 19th century. It knows little of today."])
    );
    put(data.text);

    function note(children) {
      return el("p", { class: "oe-note" }, children);
    }
    function field(name) {
      var input = el("textarea", { rows: 2, maxlength: 2000, dir: "auto", autocomplete: "off", spellcheck: "false" });
      input.addEventListener("input", typed);
      input.addEventListener("keydown", function (event) {
        if (event.key === "Enter" && !event.isComposing) event.preventDefault(); // a sentence has one line
      });
      return { input: input, node: el("label", { class: "oe-field" }, [el("span", {}, [name]), input]) };
    }

    // ---- questions ------------------------------------------------------------

    /** log q of some hidden pieces; a promise only where the network has to be asked. */
    function ask(sentence, covered, wanted) {
      var key = String(covered.slice().sort(function (a, b) { return a - b; }));
      if (!sentence.answers.has(key)) sentence.answers.set(key, new Map());
      var known = sentence.answers.get(key);
      if (wanted.every(function (j) { return known.has(j); })) return known;
      var row = [CLS], places = [], isCovered = new Set(covered.map(function (j) { return sentence.scored[j]; }));
      sentence.pieces.forEach(function (each) {
        if (each.piece !== UNKNOWN) places.push(row.length);
        row.push(isCovered.has(each) ? MASK : each.id);
      });
      passes++;
      root.dataset.passes = passes;
      return network.ask({
        shown: row.concat(SEP), places: wanted.map(function (j) { return places[j]; }),
        ids: wanted.map(function (j) { return sentence.scored[j].id; })
      }).then(function (answers) {
        answers.forEach(function (value, k) { known.set(wanted[k], value); });
        return known;
      });
    }

    /** Ask on until the error is small, and draw what is known meanwhile; ends when `turn` has changed. */
    async function work(mine) {
      function isOver() { return mine !== turn; }
      var exact = sentences.every(function (each) { return each.size <= EVERY_ORDER; });
      root.dataset.state = "working";
      for (var sentence of sentences) {
        await ask(sentence, every(sentence.size), every(sentence.size)); // where every order begins
        if (isOver()) return;
        for (var j of every(sentence.size)) {
          await ask(sentence, [j], [j]);
          if (isOver()) return;
        }
        drawAlone();
      }
      for (var each of exact ? sentences : []) {
        var sets = every(1 << each.size).slice(1);
        for (var set of sets) {
          var covered = every(each.size).filter(function (k) { return set >> k & 1; });
          await ask(each, covered, covered);
          if (isOver()) return;
        }
        each.along = permutations(every(each.size)).map(function (way) { return known(each, way); });
        each.exact = true;
      }
      while (!exact && (sentences[0].along.length < FEWEST_ORDERS || largestError() > ENOUGH) && passes < MOST_PASSES) {
        var ways = drawn(sentences);
        for (var k = 0; k < sentences.length; k++) {
          for (var t = 0; t < ways[k].length; t++) {
            await ask(sentences[k], ways[k].slice(t), [ways[k][t]]);
            if (isOver()) return;
          }
        }
        sentences.forEach(function (one, n) { one.along.push(known(one, ways[n])); });
        drawCurve();
      }
      drawCurve();
      drawReveal();
      root.dataset.state = "done";
      if (mine) frame.say(sentences.map(function (one, n) {
        return (n ? "The second: " : "The log-score is ") + worded(score(one)) + " nats.";
      }).join(" ") + (sentences.length > 1 ? " " + difference.textContent : ""));
    }

    /** The terms of an order whose answers are all known. */
    function known(sentence, way) {
      return way.map(function (j, t) {
        return sentence.answers.get(String(way.slice(t).sort(function (a, b) { return a - b; }))).get(j);
      });
    }
    function isScored(sentence) {
      return sentence.exact || sentence.along.length >= FIRST_ORDERS;
    }
    function score(sentence) {
      return measured(sentence.along.map(sum), sentence.exact);
    }
    function measured(totals, exact) {
      return { value: mean(totals), error: exact ? 0 : deviation(totals, 1) / Math.sqrt(totals.length) };
    }
    function gap() {
      var totals = sentences.map(function (each) { return each.along.map(sum); });
      if (totals.length < 2) return { value: 0, error: 0 };
      if (sentences[0].exact) return { value: mean(totals[1]) - mean(totals[0]), error: 0 };
      return measured(totals[0].map(function (value, k) { return totals[1][k] - value; }), false);
    }
    function largestError() {
      var errors = sentences.map(function (each) { return score(each).error; });
      return Math.max.apply(null, errors.concat(gap().error));
    }
    function worded(found) {
      return number(found.value, 1) + (found.error ? " \u00b1 " + found.error.toFixed(1) : "");
    }

    // ---- what is typed ----------------------------------------------------------

    function put(text, second) {
      fields[0].input.value = text;
      fields[1].input.value = second || "";
      fields[1].node.hidden = second === undefined;
      compare.textContent = second === undefined ? "Compare with a second sentence" : "One sentence alone";
    }
    function texts() {
      var used = fields.filter(function (each) { return !each.node.hidden; });
      return used.map(function (each) { return each.input.value.replace(/[\ud800-\udfff]/gu, ""); });
    }
    function typed() {
      var mine = ++turn;
      window.clearTimeout(timer);
      root.dataset.state = "typing";
      share.href = "#" + texts().map(function (text) { return "s=" + encodeURIComponent(text); }).join("&");
      if (!network) frame.say("The network is on its way: three megabytes, once.");
      load().then(async function (loaded) {
        if (!network) await test(loaded);
        network = loaded;
        if (mine === turn) take(mine);
      }).catch(function () {
        stop("the network could not be started in this browser. The first sentence stays as it was.");
      });
    }
    /** Compare an answer with the one that the page brought. */
    async function test(loaded) {
      var pieces = loaded.tokenize(data.text), covered = every(pieces.length), brought = data.answers[0];
      var answers = await loaded.ask({
        shown: [CLS].concat(covered.map(function () { return MASK; }), SEP),
        places: covered.map(function (j) { return j + 1; }), ids: pieces.map(function (each) { return each.id; })
      });
      if (!answers.every(function (value, j) { return Math.abs(value - brought[j]) < TOLERANCE; })) {
        throw new Error("other answers than the package's");
      }
      pieces.forEach(function (each, j) { Object.assign(first.pieces[j], each); });
    }
    function take(mine) {
      sentences = texts().map(function (text) {
        return text === data.text ? first : Sentence(text, network.tokenize(text));
      });
      if (sentences[1] === sentences[0] && sentences.length > 1) sentences.pop();
      order = [];
      tried = [];
      passes = 0;
      var why = sentences.map(refusal).find(Boolean);
      if (why) return stop(why);
      stopped.hidden = true;
      results.hidden = false;
      frame.say(sentences.map(notes).filter(Boolean).join(" "));
      draw();
      timer = window.setTimeout(function () { work(mine); }, PAUSE);
    }
    function stop(why) {
      turn++;
      frame.say("");
      stopped.textContent = why[0].toUpperCase() + why.slice(1);
      stopped.hidden = false;
      stopped.setAttribute("role", "status");
      results.hidden = true;
      root.dataset.state = "stopped";
    }

    // ---- revealing ------------------------------------------------------------

    function hidden() {
      return every(sentences[0].size).filter(function (j) { return order.indexOf(j) < 0; });
    }
    async function reveal(j) {
      var mine = turn, sentence = sentences[0], covered = hidden();
      if (covered.indexOf(j) < 0) return false;
      var found = await ask(sentence, covered, [j]);
      if (mine !== turn || order.indexOf(j) >= 0 || hidden().length !== covered.length) return false;
      order.push(j);
      if (order.length === sentence.size) tried.push(sum(known(sentence, order)));
      drawReveal();
      frame.say(sentence.scored[j].piece + " adds " + number(found.get(j), 2) + ". Total so far " + running() + "." +
        (order.length < sentence.size ? "" : " All are revealed."));
      return true;
    }
    async function revealAll(left) {
      for (var j of left) if (!(await reveal(j))) return;
    }
    function running() {
      return number(sum(order.map(function (j, t) { return termAt(t); })), 2);
    }
    function termAt(t) {
      var covered = every(sentences[0].size).filter(function (j) { return order.slice(0, t).indexOf(j) < 0; });
      return sentences[0].answers.get(String(covered)).get(order[t]);
    }

    // ---- drawing ----------------------------------------------------------------

    function draw() {
      drawAlone();
      drawCurve();
      drawReveal();
    }

    /** A piece as text, whatever its letters are. */
    function shownPiece(each) {
      return el("bdi", { class: "oe-letter" }, [each.piece === UNKNOWN ? "unknown" : each.piece]);
    }
    function drawAlone() {
      alone.replaceChildren.apply(alone, sentences.map(function (sentence, n) {
        var values = sentence.scored.map(function (_, j) {
          var answers = sentence.answers.get(String(j));
          return answers && answers.has(j) ? -answers.get(j) : null;
        });
        return el("ol", { class: "oe-tokens", "aria-label": (n ? "The second sentence" : "The sentence") + " in pieces" },
          sentence.pieces.map(function (each) {
            var value = values[sentence.scored.indexOf(each)], known = value !== undefined && value !== null;
            var bar = el("span", { class: "oe-surprise", "aria-hidden": "true" });
            bar.style.height = (known ? Math.min(value, 12) / 4 : 0) + "rem";
            return el("li", { class: "oe-token" }, [
              el("span", { class: "oe-column" }, [bar]), shownPiece(each),
              el("span", { class: "oe-number" }, [known ? value.toFixed(2) : each.piece === UNKNOWN ? "\u2013" : "\u2026"])
            ]);
          }));
      }));
    }

    function drawCurve() {
      sums[1].node.hidden = sentences.length < 2;
      difference.hidden = true;
      sentences.forEach(function (sentence, n) {
        var end = n ? "2" : "", count = sentence.along.length, found = isScored(sentence) ? score(sentence) : null;
        function show(key, text) { sums[n].set(key + end, found ? text() : "\u2026"); }
        show("score", function () { return worded(found); });
        show("bits", function () { return number(-found.value / Math.LN2 / sentence.bytes, 2); });
        show("perplexity", function () { return number(Math.exp(-found.value / sentence.size), 0); });
        sums[n].set("orders" + end, sentence.exact ? "all " + count : String(count)); // a sign of work, from 0 on
      });
      picture.replaceChildren();
      if (!sentences.every(isScored)) {
        return picture.append(note(["The curve comes with the first " + FIRST_ORDERS + " orders. So far: " +
          sentences[0].along.length + "."]));
      }
      var curves = sentences.map(heights);
      var most = Math.max.apply(null, sentences.map(function (each) { return each.size; }));
      var high = Math.max.apply(null, [].concat.apply([], curves).map(function (point) { return point[1] + point[2]; }));
      var c = shared.chart(root, "Mean surprise at a piece against the number of hidden pieces. " + curves[0].map(function (point) {
        return point[0] + ": " + point[1].toFixed(1);
      }).join(", ") + ".", 230, [0.5, most + 0.5], [0, 1.06 * high], "hidden pieces M", "surprise, \u2212S(x; M), nats");
      c.add("path", { class: "oe-net-area", d: c.path([[curves[0][0][0], 0]].concat(curves[0], [[sentences[0].size, 0]])) + "Z" });
      curves.forEach(function (points, n) {
        points.forEach(function (point) {
          if (point[2]) c.line("oe-whisker", [[point[0], point[1] - point[2]], [point[0], point[1] + point[2]]]);
          c.add("circle", { class: n ? "oe-source-dot" : "oe-net-dot", cx: c.px(point[0]), cy: c.py(point[1]), r: n ? 4.5 : 3 });
        });
        c.line(n ? "oe-source-line" : "oe-net-line", points);
      });
      picture.append(c.node);
      if (sentences.length < 2) return;
      var found = gap(), less = found.value < 0;
      difference.textContent = "The second sentence (wide line) has a log-score " + number(Math.abs(found.value), 1) +
        (found.error ? " \u00b1 " + found.error.toFixed(1) : "") + " nats " + (less ? "lower" : "higher") +
        " than the first, along the same orders" + (Math.abs(found.value) > 2 * found.error ? ": the network finds it " +
        (less ? "less" : "more") + " probable." : ": that is no difference yet.");
      difference.hidden = false;
    }
    /** Rows [M, surprise, error]: with M hidden, step D - M + 1 of an order is taken. */
    function heights(sentence) {
      return every(sentence.size).map(function (k) {
        var terms = sentence.along.map(function (each) { return -each[sentence.size - 1 - k]; });
        var error = sentence.exact ? 0 : deviation(terms, 1) / Math.sqrt(terms.length);
        return [k + 1, mean(terms), error];
      });
    }

    function drawReveal() {
      var sentence = sentences[0], totals = sentence.along.map(sum);
      cards.replaceChildren.apply(cards, sentence.scored.map(function (each, j) {
        var step = order.indexOf(j), card = shared.button("", function () {
          reveal(j).then(function () { cards.children[j].focus(); });
        });
        card.className = "oe-token";
        card.dataset.revealed = step >= 0;
        card.setAttribute("aria-disabled", step >= 0);
        card.append(step < 0 ? "?" : shownPiece(each), el("span", { class: "oe-number" },
          [step < 0 ? "hidden" : number(termAt(step), 2)]));
        card.setAttribute("aria-label", "Piece " + (j + 1) + (step < 0 ? ", hidden" : ": " + each.piece));
        return card;
      }));
      steps.set("term", order.length ? number(termAt(order.length - 1), 2) : "none yet");
      steps.set("running", running());
      steps.set("range", !tried.length ? "none yet" : tried.length === 1 ? number(tried[0], 2) :
        number(Math.min.apply(null, tried), 2) + " to " + number(Math.max.apply(null, tried), 2));
      spread.textContent = totals.length > 1 ? "Over " + (sentence.exact ? "all " : "") + totals.length +
        " orders the totals run from " + number(Math.min.apply(null, totals), 1) + " to " +
        number(Math.max.apply(null, totals), 1) + ", with a standard deviation of " +
        deviation(totals, sentence.exact ? 0 : 1).toFixed(1) + "." : "";
      one.textContent = order.length === sentence.size ? "Another order" : "Reveal one";
    }
    var spread = note([]);
    results.append(spread);

    // ---- how it starts ----------------------------------------------------------

    /** A link carries one sentence or two: #s=…&s=… */
    function fromLink() {
      var sent = new URLSearchParams(window.location.hash.slice(1)).getAll("s");
      if (!sent.length || String(sent) === String(texts())) return;
      put(sent[0], sent[1]);
      root.scrollIntoView({ block: "nearest" });
      typed();
    }
    share.href = "#s=" + encodeURIComponent(data.text);
    window.addEventListener("hashchange", fromLink);
    shared.onWidth(root, drawCurve);
    work(turn).then(draw);
    fromLink();
  }

  function isUsable(data) {
    return data.pieces.length <= EVERY_ORDER && data.answers.length === 1 << data.pieces.length;
  }

  shared.start("sentence-explorer", isUsable, Explorer);
})();
