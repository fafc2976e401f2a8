// OpenAI's client for JavaScript, as its users call it, against BASE with TOKEN.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const bytes = (one) => Buffer.from(one.b64_json, "base64");
const size = (png) => {
  assert.equal(png.toString("latin1", 1, 4), "PNG");
  return [png.readUInt32BE(16), png.readUInt32BE(20)];
};

const names = [];
for await (const m of client.models.list()) names.push(m.id);
assert.deepEqual(names, ["demo", "demo-edit"]);

const made = await client.images.generate({ model: "demo", prompt: "a star", n: 2, size: "64x96", steps: 2 });
assert.deepEqual(made.data.map((one) => size(bytes(one))), [[64, 96], [64, 96]]);

const edited = await client.images.edit({
  model: "demo-edit", prompt: "a star", image: await toFile(bytes(made.data[0]), "a.png", { type: "image/png" }),
});
assert.deepEqual(size(bytes(edited.data[0])), [128, 128]);

const kinds = [];
const stream = await client.images.generate({
  model: "demo", prompt: "a star", size: "64x64", steps: 2, stream: true, partial_images: 1,
});
for await (const event of stream) kinds.push(event.type);
assert.equal(kinds.at(-1), "image_generation.completed");

await assert.rejects(client.images.generate({ model: "nobody", prompt: "x" }),
  (e) => e instanceof OpenAI.NotFoundError && e.param === "model" && e.code === "no_such_template");
await assert.rejects(new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list(),
  (e) => e instanceof OpenAI.AuthenticationError);
console.log("openai for JavaScript: 0 parts fail");
