// A chat under a token budget. Node's own modules, and a tollgate server.
//
//     tollgate serve --config ../tollgate.toml &
//     node chat.mjs stream alice 600 400     # reserves 600 tokens, streams 400, settles 400
//     node chat.mjs call alice 250           # asks, calls, and records the 250 tokens it used
//
// Exit code 0: answered. 1: over budget.

import { setTimeout as sleep } from 'node:timers/promises';

const TOLLGATE = process.env.TOLLGATE ?? 'http://127.0.0.1:8080';
const TTL = 3; // Seconds. Short, so that this demonstration renews; 30 to 60 suit production.

/** The budget does not admit the request now. */
class OverBudget extends Error {
  constructor(answer) {
    super(answer.detail);
    this.answer = answer;
  }
}

/** Asks tollgate, and returns its answer. */
async function tollgate(path, body) {
  const headers = { 'content-type': 'application/json' };
  const signal = AbortSignal.timeout(5000);
  const response = await fetch(TOLLGATE + path, { method: 'POST', headers, body: JSON.stringify(body), signal });
  const answer = JSON.parse((await response.text()) || '{}');
  if (response.status === 429) throw new OverBudget(answer);
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

/** A stand-in for a language model: a hundred tokens a second. */
async function* model(tokens) {
  for (let number = 0; number < tokens; number++) {
    await sleep(10);
    yield `token${number} `;
  }
}

/** Answers as the model streams. The budget pays what the stream used, however it ends. */
async function stream(client, estimate, tokens) {
  const body = { attributes: { client }, cost: estimate, ttl: `${TTL}s` };
  const reserved = await tollgate('/v1/reserve', body);
  console.log(`reserved ${estimate}, ${reserved.remaining} left`);
  const reservation = `/v1/reserve/${reserved.id}`;
  const renew = () => tollgate(`${reservation}/renew`, { ttl: `${TTL}s` }).catch(console.error);
  const renewal = setInterval(renew, (TTL * 1000) / 3);
  let used = 0;
  try {
    for await (const token of model(tokens)) {
      used += 1; // Send `token` on to the caller here.
    }
  } finally {
    clearInterval(renewal);
    const settled = await tollgate(`${reservation}/settle`, { cost: used });
    console.log(`used ${used}, ${settled.shortfall} beyond the debt`);
  }
}

/** Calls a model that says afterwards what it used, as an embedding does. */
async function call(client, tokens) {
  await tollgate('/v1/check', { attributes: { client }, cost: 1, peek: true });
  let used = 0;
  for await (const _ of model(tokens)) used += 1;
  const recorded = await tollgate('/v1/record', { attributes: { client }, cost: used });
  console.log(`used ${used}, ${recorded.remaining} left, ${recorded.owed ?? 0} owed`);
}

const [verb, client, ...numbers] = process.argv.slice(2);
try {
  await { stream, call }[verb](client, ...numbers.map(Number));
} catch (error) {
  if (!(error instanceof OverBudget)) throw error;
  const { remaining, owed = 0, retryAfterMs } = error.answer;
  const seconds = Math.ceil(retryAfterMs / 1000);
  console.log(`over budget: ${remaining} left, ${owed} owed, retry in ${seconds} s`);
  process.exitCode = 1;
}
