import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const input_schema = { type: "object", properties: { place: { type: "string" } }, required: ["place"] };
const tools = [{ name: "look", description: "Look.", input_schema }];
const messages = [{ role: "user", content: "hello" }];

const asked = await client.messages.create({ model: "tiny", max_tokens: 500, messages, tools });
assert.equal(asked.stop_reason, "tool_use");
const use = asked.content.find(block => block.type === "tool_use");
assert.deepEqual(use.input, { place: "Ulm" });
const result = { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "sun" }] };
const stream = client.messages.stream({ model: "tiny", max_tokens: 500, messages: [...messages, { role: "assistant", content: asked.content }, result], tools });
assert.equal(await stream.finalText(), "It is fine.");
await assert.rejects(client.messages.create({ model: "none", max_tokens: 5, messages }), Anthropic.NotFoundError);
console.log("ok");
