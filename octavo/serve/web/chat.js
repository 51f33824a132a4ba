"use strict";
let turns = [], running = null, models = "";

async function hello() {
  const answer = await fetch("/v1/models", { headers: headers() }).catch(() => null);
  if (answer?.status === 401) {
    said("needs an API key");
    if (panel !== "settings") open("settings");
    return void $("key").focus();
  }
  if (!answer?.ok) { said(answer ? "loading the model…" : "no connection"); return void setTimeout(hello, 1500); }
  const found = (await answer.json()).data.map(each => each.id), chosen = kept(local, "model");
  if (found.join("\n") !== models) {
    models = found.join("\n");
    $("model").replaceChildren(...found.map(id => new Option(id, id, false, id === chosen)));
  }
  said("");
}
const said = text => { $("state").textContent = text; };

function welcome() {
  const asks = ["Explain recursion with an example", "Write a haiku about paper", "Sort a list of dates in Python"].map(text => {
    const button = press(text, () => { if (!running) ask(text); });
    button.className = "quiet";
    return button;
  });
  $("turns").replaceChildren(styled("div", "empty", make("p", "Ask the model something."), ...asks));
}

function bubble(role, ...inside) {
  document.querySelector(".empty")?.remove();
  const node = styled("div", "turn " + role, ...inside);
  $("turns").append(node);
  low();
  return node;
}
const low = () => { $("scroll").scrollTop = $("scroll").scrollHeight; };

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find(line => line.startsWith("data: "));
      if (data && data !== "data: [DONE]") yield JSON.parse(data.slice(6));
    }
  }
}

// An answer as it grows: thoughts, text, calls.
class Reply {
  constructor() {
    this.text = ""; this.thoughts = ""; this.calls = []; this.finish = ""; this.json = asJson();
    this.body = styled("div", "body busy");
    this.node = bubble("assistant", this.body);
    this.drawing = 0;
  }
  add(delta) {
    this.thoughts += delta.reasoning || "";
    this.text += delta.content || "";
    for (const part of delta.tool_calls || []) {
      const call = this.calls[part.index] ||= { id: "", type: "function", function: { name: "", arguments: "" } };
      call.id ||= part.id || "";
      call.function.name += part.function?.name || "";
      call.function.arguments += part.function?.arguments || "";
    }
    this.drawing ||= requestAnimationFrame(() => this.draw());
  }
  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    const near = $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 60;
    if (this.json && this.text) this.body.replaceChildren(block(pretty(this.text)));
    else show(this.body, this.text);
    if (this.thoughts) {
      if (!this.thinking) {
        this.thinking = make("div");
        this.fold = styled("details", "thoughts", make("summary", "Thoughts"), this.thinking);
        this.fold.open = true;
        this.node.prepend(this.fold);
      }
      this.thinking.textContent = this.thoughts;
      if (this.text && !this.folded) { this.folded = true; this.fold.open = false; }
    }
    this.calls.forEach((call, index) => {
      const card = (this.cards ||= [])[index] ||= this.node.appendChild(styled("div", "call", make("b", ""), make("pre", make("code", ""))));
      card.querySelector("b").textContent = call.function.name;
      card.querySelector("code").textContent = pretty(call.function.arguments);
    });
    if (near) low();
  }
  message() {
    const message = { role: "assistant", content: this.text || (this.calls.length ? null : "") };
    if (this.calls.length) message.tool_calls = this.calls;
    return message;
  }
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

async function ask(text) {
  turns.push({ role: "user", content: text });
  bubble("user", text);
  await answer();
}

async function answer() {
  const chat = turns;  // "New chat" puts another in its place
  const reply = new Reply(), start = performance.now(), own = running = new AbortController();
  let first = 0, usage = null, stopped = "";
  stopping(true);
  try {
    const sent = JSON.stringify(request(chat));
    const got = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: sent, signal: own.signal });
    if (!got.ok) throw new Error((await got.json()).error.message);
    for await (const chunk of events(got.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      reply.finish = choice.finish_reason || reply.finish;
      const delta = choice.delta || {};
      if (delta.content || delta.reasoning || delta.tool_calls) { first ||= performance.now(); reply.add(delta); }
    }
  } catch (problem) {
    stopped = problem.name === "AbortError" ? "stopped" : problem.message;
    if (stopped !== "stopped") reply.node.classList.add("error");
    if (problem instanceof Trouble && panel !== "settings") open("settings");
  }
  reply.body.classList.remove("busy");
  reply.draw();
  const any = reply.text || reply.calls.length;
  if (any) chat.push(reply.message()); else if (chat.at(-1)?.role === "user") chat.pop();
  note(reply, facts(reply, usage, start, first, stopped), chat);
  if (reply.calls.length && !stopped) askResults(reply, chat);
  low();
  if (running === own) { running = null; stopping(false); }
}

function facts(reply, usage, start, first, stopped) {
  const seconds = (performance.now() - first) / 1000, parts = [];
  if (stopped) parts.push(stopped);
  if (reply.finish === "length") parts.push("cut at the token limit");
  if (first) parts.push(`first token ${Math.round(first - start)} ms`);
  if (usage && usage.completion_tokens > 1 && seconds > 0) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""} + ${usage.completion_tokens} tokens`);
  }
  return parts.join(" · ");
}

function note(reply, text, chat) {
  const at = chat.length - 1;
  const again = press("Again", () => {
    if (running || chat !== turns || turns.length - 1 !== at) return;
    turns.pop();
    reply.node.remove();
    answer();
  });
  const copy = press("Copy", () => navigator.clipboard?.writeText(reply.text).then(() => { copy.textContent = "Copied"; }));
  reply.node.append(styled("div", "note", make("span", text), make("span", ...(reply.text ? [copy] : []), ...(chat.at(-1)?.role === "assistant" ? [again] : []))));
}

// The person stands in for the functions: each call gets a line for its result, and the conversation goes on with them.
function askResults(reply, chat) {
  const inputs = reply.calls.map((call, index) => {
    const input = make("input");
    input.placeholder = "What does it return?"; input.setAttribute("aria-label", `Result of ${call.function.name}`);
    const form = make("form", input, ...(index === reply.calls.length - 1 ? [styled("button", "quiet", "Return")] : []));
    form.addEventListener("submit", event => {
      event.preventDefault();
      if (running || chat !== turns) return;
      inputs.forEach((each, at) => { turns.push({ role: "tool", tool_call_id: reply.calls[at].id, content: each.value }); each.disabled = true; });
      answer();
    });
    reply.cards[index].append(form);
    return input;
  });
}

function stopping(stop) {
  $("send").textContent = stop ? "Stop" : "Send";
  $("send").classList.toggle("stop", stop);
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  $("text").dispatchEvent(new Event("input"));
  ask(text);
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!running) $("form").requestSubmit(); }
});
document.addEventListener("keydown", event => { if (event.key === "Escape") running?.abort(); });
$("text").addEventListener("input", () => { $("text").rows = Math.min(12, $("text").value.split("\n").length); });
$("clear").addEventListener("click", () => { running?.abort(); running = null; stopping(false); turns = []; welcome(); $("text").focus(); });
$("key").value = kept(session, "key");
$("key").addEventListener("change", () => { keep(session, "key", $("key").value); hello(); });
$("model").addEventListener("change", () => keep(local, "model", $("model").value));
welcome();
hello();
