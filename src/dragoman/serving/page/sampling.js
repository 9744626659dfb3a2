// How sampling changes the distribution of the next token, with the same rules and order as the service.

/**
 * Return the probabilities of sampling for logits in descending order: divided by the temperature, then only the `topK` most
 * probable tokens, then the most probable ones up to the share `topP`. Tokens that no search generates (`suppressed`, by
 * index) have none. The result sums to 1.
 */
export function samplingProbabilities(logits, { temperature = 1, topK = null, topP = null, suppressed = [] } = {}) {
  const excluded = new Set(suppressed);
  const largest = logits.find((_, n) => !excluded.has(n)) ?? 0;
  let p = normalized(logits.map((logit, n) => (excluded.has(n) ? 0 : Math.exp((logit - largest) / temperature))));
  if (topK !== null) p = keepFirst(p, topK);
  if (topP !== null) p = keepMass(p, topP);
  return normalized(p);
}

function normalized(p) {
  const total = p.reduce((sum, value) => sum + value, 0);
  return p.map((value) => value / total);
}

function keepFirst(p, count) {
  let kept = 0;
  return p.map((value) => (value > 0 && kept++ < count ? value : 0));
}

/** Keep the first tokens whose probabilities reach a share of the total, but at least one. */
function keepMass(p, share) {
  const limit = share * p.reduce((sum, value) => sum + value, 0);
  let before = 0;
  let kept = 0;
  return p.map((value) => {
    const isKept = value > 0 && (kept === 0 || before < limit);
    before += value;
    kept += isKept;
    return isKept ? value : 0;
  });
}

/** Return the entropy of a distribution in bits. */
export const entropy = (p) => -p.reduce((sum, value) => sum + (value > 0 ? value * Math.log2(value) : 0), 0);
