// Requests for the numbers of one prediction: what the walk through the model, the neurons and decoding show.

const MAX_CACHED_WALKS = 40;
const cache = new Map(); // request → walk

/** Return the numbers of the prediction after `step` tokens of the inspected translation. */
export async function requestWalk({ run, inspection }, { step = 0, position = 0, head = 1 }, post) {
  const languages = run.languages.length ? { source: run.source, target: run.target } : {};
  const text = inspection.source?.text ?? null; // a language model may have none
  const fields = { run: run.name, ...languages, text, tokens: inspection.steps.slice(0, step).map((one) => one.token_id), position, head };
  const request = JSON.stringify(fields);
  if (!cache.has(request)) {
    cache.set(request, (await post("/v1/walk", fields)).walk);
    if (cache.size > MAX_CACHED_WALKS) cache.delete(cache.keys().next().value);
  }
  return cache.get(request);
}
