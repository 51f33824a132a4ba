import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.argv[2] + "/v1";
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = [
  createOpenAICompatible({ name: "octavo", baseURL, apiKey: "none" })("tiny"),
  openai.chat("tiny"),
  openai.responses("tiny"),
];
for (const model of models) {
  const seen = [];
  const look = tool({ description: "Look.", inputSchema: z.object({ place: z.string() }), execute: async ({ place }) => { seen.push(place); return "sun"; } });
  const fields = { model, prompt: "hello", tools: { look }, stopWhen: stepCountIs(3), maxRetries: 0 };
  const whole = await generateText(fields);
  assert.equal(whole.text, "It is fine.");
  const stream = streamText(fields);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, "It is fine.");
  assert.deepEqual(seen, ["Ulm", "Ulm"]);
}
console.log("ok");
