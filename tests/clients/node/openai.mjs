import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const parameters = { type: "object", properties: { place: { type: "string" } }, required: ["place"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "look", parameters } }];
const messages = [{ role: "user", content: "hello" }];

const asked = await client.chat.completions.create({ model: "tiny", messages, tools });
const call = asked.choices[0].message.tool_calls[0];
assert.deepEqual(JSON.parse(call.function.arguments), { place: "Ulm" });
const more = [...messages, asked.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sun" }];
const runner = client.chat.completions.stream({ model: "tiny", messages: more, tools });
assert.equal(await runner.finalContent(), "It is fine.");

const first = await client.responses.create({ model: "tiny", input: "hello", tools: [{ type: "function", name: "look", parameters, strict: true }] });
const used = first.output.find(item => item.type === "function_call");
assert.equal(used.name, "look");
const stream = client.responses.stream({ model: "tiny", previous_response_id: first.id, input: [{ type: "function_call_output", call_id: used.call_id, output: "sun" }] });
const kinds = new Set();
for await (const event of stream) kinds.add(event.type);
assert.ok(kinds.has("response.completed"));
assert.equal((await stream.finalResponse()).output_text, "It is fine.");
await assert.rejects(client.chat.completions.create({ model: "tiny", messages, temperature: 9 }), OpenAI.BadRequestError);
console.log("ok");
