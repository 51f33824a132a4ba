"use strict";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"];
const KEPT = [...NUMBERS, "system", "stop", "form_kind", "form_text", "tools", "tool_choice"];
const SAMPLES = {
  json_schema: JSON.stringify({ type: "object", properties: { name: { type: "string" }, year: { type: "integer" } }, required: ["name", "year"], additionalProperties: false }, null, 2),
  regex: "(yes|no), because [a-z ]{10,60}\\.",
  choice: "yes\nno\nunsure",
};
const LABELS = { json_schema: "Schema", regex: "Expression", choice: "Texts, one a line" };
const SAMPLE_TOOL = JSON.stringify([{ type: "function", function: { name: "get_weather", description: "Weather of a city now", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }], null, 2);

class Trouble extends Error {}

function parsed(id, what) {
  try { return JSON.parse($(id).value); } catch (problem) { throw new Trouble(`${what}: ${problem.message}`); }
}

const lines = id => $(id).value.split("\n").filter(line => line);

// The fields of a request, but for model and messages. Throws Trouble for what is no JSON.
function fields() {
  const body = {};
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  if ($("stop").value) body.stop = lines("stop");
  const kind = $("form_kind").value;
  if (kind === "json_object") body.response_format = { type: kind };
  if (kind === "json_schema") body.response_format = { type: kind, json_schema: { name: "answer", strict: true, schema: parsed("form_text", "The schema is no JSON") } };
  if (kind === "regex") body.structured_outputs = { regex: $("form_text").value };
  if (kind === "choice") body.structured_outputs = { choice: lines("form_text") };
  if ($("tools").value.trim()) {
    const tools = parsed("tools", "The tools are no JSON");
    body.tools = Array.isArray(tools) ? tools : [tools];
    body.tool_choice = $("tool_choice").value;
  }
  return body;
}

function request(turns) {
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  return { model: $("model").value, messages: [...system, ...turns], ...fields(), stream: true, stream_options: { include_usage: true } };
}

const asJson = () => ["json_object", "json_schema"].includes($("form_kind").value);

function settled() {
  const kind = $("form_kind").value;
  $("form_label").hidden = !LABELS[kind];
  if (LABELS[kind]) $("form_label").firstChild.data = LABELS[kind];
  let said = "";
  try { fields(); } catch (problem) { said = problem.message; }
  $("trouble").textContent = said;
  const on = [kind && $("form_kind").selectedOptions[0].text, $("tools").value.trim() && "tools", $("system").value && "system message"].filter(Boolean);
  $("hint").textContent = on.length ? "With " + on.join(", ") : "";
  for (const id of KEPT) keep(local, id, $(id).value);
}

for (const id of KEPT) {
  const value = kept(local, id);
  if (value) $(id).value = value;
  $(id).addEventListener("input", settled);
}
$("form_kind").addEventListener("change", () => { $("form_text").value = SAMPLES[$("form_kind").value] || ""; settled(); });
$("sample_tool").addEventListener("click", () => { $("tools").value = SAMPLE_TOOL; $("tools").rows = 10; settled(); });
$("reset").addEventListener("click", () => { for (const id of KEPT) $(id).value = id === "tool_choice" ? "auto" : ""; settled(); });
$("curl").addEventListener("click", async () => {
  try {
    const body = JSON.stringify({ ...request([{ role: "user", content: $("text").value || "Hello" }]), stream: false, stream_options: undefined });
    const key = $("key").value ? ` -H "Authorization: Bearer $OCTAVO_API_KEY"` : "";
    const text = `curl ${location.origin}/v1/chat/completions -H "Content-Type: application/json"${key} -d '${body.replaceAll("'", "'\\''")}'`;
    await navigator.clipboard.writeText(text);
    $("curl").textContent = "Copied";
  } catch (problem) { $("trouble").textContent = problem.message; }
});
settled();
