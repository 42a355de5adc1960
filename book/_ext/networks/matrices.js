/* The matrices of the networks that run inside a page. Vectors of one length stand in a flat array, one
 * after the other; a matrix of weights has a vector for each output.
 *
 * A worker gets this function as text, so nothing in it comes from outside.
 */
function matrices() {
  "use strict";

  function bytes(base64) {
    var text = atob(base64), out = new Uint8Array(text.length);
    for (var k = 0; k < out.length; k++) out[k] = text.charCodeAt(k);
    return out;
  }

  /** Numbers of 16 bits: sign, five bits of exponent, ten of fraction. */
  function halves(packed) {
    var out = new Float64Array(packed.length / 2);
    for (var k = 0; k < out.length; k++) {
      var bits = packed[2 * k] | (packed[2 * k + 1] << 8), exponent = (bits >> 10) & 31, fraction = bits & 1023;
      out[k] = exponent === 31 ? NaN : (bits >> 15 ? -1 : 1) * (exponent // no weight is infinite
        ? Math.pow(2, exponent - 15) * (1 + fraction / 1024)
        : fraction * Math.pow(2, -24));
    }
    return out;
  }

  /** Each vector of x through weights and bias, four outputs of two vectors at a time. */
  function linear(x, inputs, weight, bias) {
    var rows = x.length / inputs, outputs = weight.length / inputs, out = new x.constructor(rows * outputs);
    for (var r = 0; r < rows; r += 2) {
      var s = Math.min(r + 1, rows - 1), u = r * inputs, v = s * inputs; // the last one may come twice
      for (var o = 0; o < outputs; o += 4) {
        var last = outputs - 1, o1 = Math.min(o + 1, last), o2 = Math.min(o + 2, last), o3 = Math.min(o + 3, last);
        var w0 = o * inputs, w1 = o1 * inputs, w2 = o2 * inputs, w3 = o3 * inputs;
        var a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
        for (var i = 0; i < inputs; i++) {
          var a = x[u + i], b = x[v + i], w = weight[w0 + i];
          a0 += w * a; b0 += w * b;
          w = weight[w1 + i]; a1 += w * a; b1 += w * b;
          w = weight[w2 + i]; a2 += w * a; b2 += w * b;
          w = weight[w3 + i]; a3 += w * a; b3 += w * b;
        }
        var to = r * outputs, also = s * outputs;
        out[to + o] = a0; out[to + o1] = a1; out[to + o2] = a2; out[to + o3] = a3;
        out[also + o] = b0; out[also + o1] = b1; out[also + o2] = b2; out[also + o3] = b3;
      }
    }
    return bias ? out.map(function (value, k) { return value + bias[k % outputs]; }) : out;
  }

  /** Each vector with mean 0 and variance 1, then scaled and shifted. */
  function normalized(x, scale, shift, epsilon) {
    var width = scale.length, out = new x.constructor(x.length);
    for (var at = 0; at < x.length; at += width) {
      var mean = 0, variance = 0, i;
      for (i = 0; i < width; i++) mean += x[at + i] / width;
      for (i = 0; i < width; i++) variance += (x[at + i] - mean) * (x[at + i] - mean) / width;
      var by = 1 / Math.sqrt(variance + epsilon);
      for (i = 0; i < width; i++) out[at + i] = (x[at + i] - mean) * by * scale[i] + (shift ? shift[i] : 0);
    }
    return out;
  }

  function plus(x, y) {
    return x.map(function (value, k) { return value + y[k]; });
  }

  /** x Phi(x) with the normal distribution function, by its series of positive terms. */
  function gelu(x) {
    var z = Math.abs(x);
    if (z > 8.5) return x > 0 ? x : 0; // what is missing is below 1e-15
    var term = z, series = z;
    for (var n = 3; term > 1e-17 * series; n += 2) {
      term *= (z * z) / n;
      series += term;
    }
    var half = series * Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI); // Phi(z) - 1/2
    return x * (x > 0 ? 0.5 + half : 0.5 - half);
  }

  function logSumExp(values) {
    var most = -Infinity, total = 0, k;
    for (k = 0; k < values.length; k++) most = Math.max(most, values[k]);
    for (k = 0; k < values.length; k++) total += Math.exp(values[k] - most);
    return most + Math.log(total);
  }

  function logSoftmax(logits) {
    var total = logSumExp(logits);
    return logits.map(function (value) { return value - total; });
  }

  /** The vectors of some places. */
  function rows(x, width, places) {
    var out = new x.constructor(places.length * width);
    places.forEach(function (place, k) {
      out.set(x.subarray(place * width, (place + 1) * width), k * width);
    });
    return out;
  }

  /** What the heads bring to each place: values, weighted by how well their keys fit its query. A place
   * looks no farther than `reach` places away. */
  function attended(queries, keys, values, places, width, heads, reach) {
    var part = width / heads, length = keys.length / width, out = new queries.constructor(queries.length);
    places.forEach(function (place, row) {
      var from = Math.max(0, place - reach), to = Math.min(length, place + reach + 1);
      for (var head = 0; head < heads; head++) {
        var fit = new Float64Array(to - from), q = row * width + head * part, k, i, at;
        for (k = from; k < to; k++) {
          for (i = 0, at = k * width + head * part; i < part; i++) fit[k - from] += queries[q + i] * keys[at + i];
          fit[k - from] /= Math.sqrt(part);
        }
        var share = logSoftmax(fit);
        for (k = from; k < to; k++) {
          var by = Math.exp(share[k - from]);
          for (i = 0, at = k * width + head * part; i < part; i++) out[q + i] += by * values[at + i];
        }
      }
    });
    return out;
  }

  return {
    bytes: bytes, halves: halves, linear: linear, normalized: normalized, plus: plus, gelu: gelu,
    logSumExp: logSumExp, logSoftmax: logSoftmax, rows: rows, attended: attended
  };
}
