// The stock client for Node against one URL: asks, and prints what it got as one JSON object.
//
//   node client.mjs URL
//
// The Python side runs it against the gateway and against a replica, and compares.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const resolved = createRequire(process.env.CLIENT_FOLDER + "/").resolve("openai");
const { default: OpenAI } = await import(pathToFileURL(resolved));

const url = process.argv[2];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });

const messages = [{ role: "user", content: "Why is the sky blue? 🌍" }];
const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const chat = { model: "tiny", messages, max_tokens: 12, temperature: 0, seed: 11 };
const completion = { model: "tiny", prompt: "Once upon a time", max_tokens: 12, temperature: 0, seed: 11 };

// The library's types allow no such member; its wire does. It keeps cached blocks of one run from the other.
const salted = (body) => ({ ...body, cache_salt: crypto.randomUUID() });

const whole = (answer) => ({ choices: answer.choices, usage: answer.usage, model: answer.model });

async function gather(stream) {
  const choices = {};
  let usage = null;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      const gathered = (choices[choice.index] ??= { text: "", tools: "", finish: null });
      gathered.text += choice.text ?? choice.delta?.content ?? "";
      for (const call of choice.delta?.tool_calls ?? []) gathered.tools += (call.function?.name ?? "") + (call.function?.arguments ?? "");
      gathered.finish = choice.finish_reason ?? gathered.finish;
    }
  }
  return { choices, usage };
}

async function refused(ask) {
  try {
    await ask();
    return "was answered";
  } catch (error) {
    return { name: error.constructor.name, status: error.status, message: error.message, param: error.param };
  }
}

const withUsage = { stream: true, stream_options: { include_usage: true } };
const asked = {
  chat: async () => whole(await client.chat.completions.create(salted(chat))),
  chat_stream: async () => gather(await client.chat.completions.create(salted({ ...chat, stream: true }))),
  chat_stream_usage: async () => gather(await client.chat.completions.create(salted({ ...chat, ...withUsage }))),
  chat_n: async () => whole(await client.chat.completions.create(salted({ ...chat, n: 2, temperature: 1 }))),
  chat_logprobs: async () => whole(await client.chat.completions.create(salted({ ...chat, logprobs: true, top_logprobs: 2 }))),
  chat_tools: async () => gather(await client.chat.completions.create(salted({ ...chat, tools, tool_choice: "auto", ...withUsage }))),
  completion: async () => whole(await client.completions.create(salted(completion))),
  completion_stream: async () => gather(await client.completions.create(salted({ ...completion, ...withUsage }))),
  completion_token_ids: async () => whole(await client.completions.create(salted({ ...completion, prompt: [9707, 11, 1879] }))),
  bad_temperature: () => refused(() => client.chat.completions.create({ ...chat, temperature: 3 })),
  bad_temperature_stream: () => refused(() => client.chat.completions.create({ ...chat, temperature: 3, stream: true })),
  unknown_model: async () => {
    const { name, status } = await refused(() => client.chat.completions.create({ ...chat, model: "no-such-model" }));
    return { name, status };
  },
  abandoned_stream: async () => {
    const stream = await client.completions.create({ ...completion, max_tokens: 6000, ignore_eos: true, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 3) break; // leaving the loop aborts the request
    return seen;
  },
  aborted_whole: async () => {
    const controller = new AbortController();
    const answer = client.completions.create({ ...completion, max_tokens: 6000, ignore_eos: true }, { signal: controller.signal });
    setTimeout(() => controller.abort(), 300);
    return (await refused(() => answer)).name;
  },
};

const results = {};
for (const [name, ask] of Object.entries(asked)) {
  try {
    results[name] = await ask();
  } catch (error) {
    results[name] = `failed: ${error}`;
  }
}
console.log(JSON.stringify(results));
