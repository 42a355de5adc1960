/* The book's small BERT: its tokenizer, which runs in the page, and its network, which a worker runs.
 *
 * window.smallBert = {Tokenizer, Network, worker, packed}; what is packed, the build writes behind it.
 */

/** A function of a text: its pieces, as the tokenizer of the package cuts it. */
function Tokenizer(vocabulary) {
  "use strict";
  var ids = new Map(vocabulary.map(function (piece, id) { return [piece, id]; }));
  var UNKNOWN = "[UNK]", SPECIAL = /(\[(?:PAD|UNK|CLS|SEP|MASK)\])/;
  var LONGEST = 100; // characters of a word; a longer one is unknown
  var SPACE = /^\p{White_Space}$/u, MARK = /^\p{Mn}$/u, DROPPED = /^(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\ufffd]$/u;
  var ALONE = /^[\p{P}!-/:-@[-`{-~]$/u;
  var CJK = [[0x4e00, 0x9fff], [0x3400, 0x4dbf], [0x20000, 0x2a6df], [0x2a700, 0x2b73f], [0x2b740, 0x2b81f],
    [0x2b920, 0x2ceaf], [0xf900, 0xfaff], [0x2f800, 0x2fa1f]];

  function isChinese(character) {
    var code = character.codePointAt(0);
    return CJK.some(function (range) { return range[0] <= code && code <= range[1]; });
  }

  /** Words of lower case without accents: lists of [character, where in the text its source ends]. */
  function words(text, start) {
    var out = [], word = [], at = start;
    function cut() {
      if (word.length) out.push(word);
      word = [];
    }
    Array.from(text).forEach(function (character) {
      at += character.length;
      if (DROPPED.test(character)) return;
      if (SPACE.test(character)) return cut();
      var chinese = isChinese(character);
      if (chinese) cut();
      Array.from(character.normalize("NFD")).forEach(function (part) {
        if (MARK.test(part)) return;
        Array.from(part.toLowerCase()).forEach(function (lower) {
          if (ALONE.test(lower)) cut();
          word.push([lower, at]);
          if (ALONE.test(lower)) cut();
        });
      });
      if (chinese) cut();
    });
    cut();
    return out;
  }

  /** The longest pieces that the vocabulary has, from the left; one unknown piece where there are none. */
  function pieces(word) {
    var out = [], from = 0, whole = word[word.length - 1][1];
    while (from < word.length && word.length <= LONGEST) {
      var to = word.length, piece = "";
      for (; to > from; to--) {
        piece = (from ? "##" : "") + word.slice(from, to).map(function (each) { return each[0]; }).join("");
        if (ids.has(piece)) break;
      }
      if (to === from) break;
      out.push({ piece: piece, id: ids.get(piece), end: word[to - 1][1] });
      from = to;
    }
    return from === word.length ? out : [{ piece: UNKNOWN, id: ids.get(UNKNOWN), end: whole }];
  }

  return function (text) {
    var out = [], at = 0;
    text.split(SPECIAL).forEach(function (part, k) {
      if (k % 2) out.push({ piece: part, id: ids.get(part), end: at + part.length });
      else words(part, at).forEach(function (word) { out.push.apply(out, pieces(word)); });
      at += part.length;
    });
    return out;
  };
}

/** A function of (shown, places, ids): log q of a token at each place of a row that is shown. */
function Network(kit, packed) {
  "use strict";
  var WIDTH = 160, HEADS = 5, LAYERS = 6, REACH = 16, EPSILON = 1e-5;
  var WORDS = "model.embeddings.tok_embeddings.weight", weights = decoded(), words = weights[WORDS];

  /** Numbers of half precision, of a matrix times 8 bits each; the words' vectors less their mean. */
  function decoded() {
    var small = new Int8Array(kit.bytes(packed.int8).buffer), half = kit.halves(kit.bytes(packed.half));
    var weights = {}, at = 0, of = 0;
    Object.keys(packed.shapes).forEach(function (name) {
      var shape = packed.shapes[name], isMatrix = shape.length === 2, size = shape[0] * (isMatrix ? shape[1] : 1);
      var numbers = weights[name] = new Float32Array(size);
      for (var k = 0; k < size; k++) {
        numbers[k] = isMatrix ? half[of + Math.floor(k / packed.share)] * small[at + k] : half[of + k];
      }
      at += isMatrix ? size : 0;
      of += isMatrix ? size / packed.share : size;
    });
    weights[WORDS] = weights[WORDS].map(function (value, k) { return value + weights.center[k % WIDTH]; });
    return weights;
  }

  function linear(name, x, inputs) {
    return kit.linear(x, inputs || WIDTH, weights[name + ".weight"]);
  }
  function normalized(name, x) {
    return kit.normalized(x, weights[name + ".weight"], null, EPSILON);
  }
  /** The numbers `from` to `to` of each vector. */
  function columns(x, width, from, to) {
    var out = new Float32Array(x.length / width * (to - from));
    for (var row = 0; row * width < x.length; row++) {
      out.set(x.subarray(row * width + from, row * width + to), row * (to - from));
    }
    return out;
  }

  /** Each pair of a head's numbers, turned by an angle that grows with the place. */
  function turned(x, places, base) {
    var part = WIDTH / HEADS, half = part / 2;
    places.forEach(function (place, row) {
      for (var i = 0; i < half; i++) {
        var angle = place * Math.pow(base, -i / half), c = Math.cos(angle), s = Math.sin(angle);
        for (var a = row * WIDTH + i; a < (row + 1) * WIDTH; a += part) {
          var first = x[a], second = x[a + half];
          x[a] = first * c - second * s;
          x[a + half] = second * c + first * s;
        }
      }
    });
    return x;
  }

  function layer(depth, x, every, places) {
    var name = "model.layers." + depth, local = depth % 2, base = local ? 10000 : 160000;
    var qkv = linear(name + ".attn.Wqkv", depth ? normalized(name + ".attn_norm", x) : x);
    var queries = turned(kit.rows(columns(qkv, 3 * WIDTH, 0, WIDTH), WIDTH, places), places, base);
    var keys = turned(columns(qkv, 3 * WIDTH, WIDTH, 2 * WIDTH), every, base);
    var values = columns(qkv, 3 * WIDTH, 2 * WIDTH, 3 * WIDTH);
    var brought = kit.attended(queries, keys, values, places, WIDTH, HEADS, local ? REACH : Infinity);
    x = kit.plus(kit.rows(x, WIDTH, places), linear(name + ".attn.Wo", brought));
    var both = linear(name + ".mlp.Wi", normalized(name + ".mlp_norm", x)), inner = both.length / places.length / 2;
    var gate = columns(both, 2 * inner, inner, 2 * inner);
    var open = columns(both, 2 * inner, 0, inner).map(function (value, k) { return kit.gelu(value) * gate[k]; });
    return kit.plus(x, linear(name + ".mlp.Wo", open, inner));
  }

  return function (shown, places, ids) {
    var every = shown.map(function (_, place) { return place; });
    var x = normalized("model.embeddings.norm", kit.rows(words, WIDTH, shown));
    for (var depth = 0; depth < LAYERS; depth++) x = layer(depth, x, every, depth < LAYERS - 1 ? every : places);
    x = linear("head.dense", normalized("model.final_norm", x)).map(kit.gelu);
    var logits = kit.linear(normalized("head.norm", x), WIDTH, words, weights["decoder.bias"]);
    var size = logits.length / places.length;
    return ids.map(function (id, k) {
      return logits[k * size + id] - kit.logSumExp(logits.subarray(k * size, (k + 1) * size));
    });
  };
}

/** The text of a worker that gets what is packed, and then answers one question after the other. */
function worker() {
  "use strict";
  return "var network, kit = (" + matrices + ")(), Network = " + Network + ";" +
    "onmessage = function (event) {" +
    "  var asked = event.data;" +
    "  if (asked.packed) network = Network(kit, asked.packed);" +
    "  else postMessage({ number: asked.number, answers: network(asked.shown, asked.places, asked.ids) });" +
    "};";
}
