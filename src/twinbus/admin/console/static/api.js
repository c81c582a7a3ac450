// The console's own API. The session is a cookie that scripts cannot read; what changes
// something also carries the token that came with signing in.

let csrf = "";
let lost = () => {};

export function whenLost(call) { lost = call; }

export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  let body = {};
  try { body = await response.json(); } catch { /* an answer without a body says it by status */ }
  if (response.ok) return body;
  if (response.status === 401) lost();
  throw new Refusal(response.status, body.error || `The broker answered ${response.status}.`);
}

async function reach(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Refusal(0, "The broker cannot be reached.");
  }
}

export function address(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null
    && value !== undefined);
  const query = new URLSearchParams(given);
  return `/console/api/${name}${given.length ? `?${query}` : ""}`;
}

export async function get(name, parameters) {
  return answer(await reach(address(name, parameters)));
}

export async function post(name, body = {}) {
  return answer(await reach(address(name), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Twinbus-Csrf": csrf },
    body: JSON.stringify(body),
  }));
}

export async function signIn(credentials) {
  const response = await reach(address("sign-in"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(credentials),
  });
  const body = await response.json();
  if (!response.ok) throw new Refusal(response.status, body.error);
  csrf = body.csrf;
  return body;
}

export async function session() {
  const response = await reach(address("session"));
  if (!response.ok) return null;
  const body = await response.json();
  csrf = body.csrf;
  return body;
}

export async function signOut() {
  await post("sign-out");
  csrf = "";
}

// Runs a change in steps until there is nothing left to do; `told` hears of each step.
export async function inSteps(name, body, told, stopped = () => false) {
  const sum = { done: 0, passed_over: 0, failures: [] };
  let next = body.from;
  let to = body.to;
  do {
    const step = await post(name, { ...body, from: next, to });
    sum.done += step.done;
    sum.passed_over += step.passed_over;
    sum.failures.push(...step.failures);
    next = step.next;
    to = step.to;
    told(sum, next, to);
  } while (next && !stopped());
  return sum;
}
