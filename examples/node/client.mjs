// A client of `oncelog serve` in Node, made from wire.proto alone.
//
//   npm ci
//   node client.mjs 127.0.0.1:7676 path/to/wire.proto orders
//
// It appends records with ids, appends them again as a retry would, reads them, and follows the log. It prints one line
// of JSON for each step.

import { randomBytes } from "node:crypto";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [address, proto, log] = process.argv.slice(2);
const definition = protoLoader.loadSync(proto, { longs: Number, defaults: true, oneofs: true });
const wire = grpc.loadPackageDefinition(definition).oncelog.v1;
const credentials = grpc.credentials.createInsecure();
const logs = new wire.Log(address, credentials);
const database = new wire.Database(address, credentials);

const say = (step, what) => console.log(JSON.stringify({ step, ...what }));
const call = (client, method, request) =>
  new Promise((resolve, reject) => client[method](request, (error, answer) => (error ? reject(error) : resolve(answer))));

// The fields of an error are in a binary trailer: kind, outcome, position and others.
const fieldsOf = (error) => {
  const [trailer] = error.metadata?.get("oncelog-error-bin") ?? [];
  return trailer ? { kind: decodeKind(trailer) } : {};
};
// Field 1 of Error is its kind: enough for this example; a generated decoder has the rest.
const decodeKind = (bytes) => bytes.subarray(2, 2 + bytes[1]).toString("utf8");

await call(database, "Create", { name: log, kind: "log", create: true });

// One call, one answer. A retry with the same id gets the first position.
const paid = { log, records: [{ value: Buffer.from("paid"), id: "order-42" }] };
const first = (await call(logs, "Append", paid)).results[0].ack;
const again = (await call(logs, "Append", paid)).results[0].ack;
say("append", { position: first.position, again: again.position, duplicate: again.duplicate });

const other = { log, records: [{ value: Buffer.from("cancelled"), id: "order-42" }], atomic: true };
await call(logs, "Append", other).catch((error) => say("conflict", { code: error.code, ...fieldsOf(error) }));

// Many records: a session of frames. A frame that is sent again under its tag is not executed twice.
const session = randomBytes(16);
const open = () =>
  new Promise((resolve) => {
    const stream = logs.Write();
    stream.on("error", () => {});
    stream.once("data", (message) => resolve([stream, message.welcome]));
    stream.write({ hello: { version: 1, session, log } });
  });
const sent = (stream, frame) =>
  new Promise((resolve) => {
    stream.once("data", (message) => resolve(message.answer));
    stream.write({ frame });
  });

const frame = { tag: 1, answered: 0, records: [{ value: Buffer.from("a") }, { value: Buffer.from("b") }] };
const [broken] = await open();
const before = await sent(broken, frame);
broken.cancel(); // the network is gone
const [stream, welcome] = await open();
const after = await sent(stream, frame);
stream.end();
const positions = (answer) => answer.results.results.map((result) => result.ack.position);
say("session", { resumed: welcome.resumed, before: positions(before), after: positions(after) });

// Reading to the end, and following: the next record comes when it is durable.
const values = [];
for await (const part of logs.Read({ log, start: { position: 0 } })) {
  values.push(...part.entries.map((entry) => entry.record.value.toString()));
}
say("read", { values });

const tail = logs.Read({ log, start: { position: values.length }, follow: true });
tail.on("error", () => {});
const next = new Promise((resolve) => tail.once("data", (part) => resolve(part.entries[0].record.value.toString())));
await call(logs, "Append", { log, records: [{ value: Buffer.from("shipped"), id: "order-42-shipped" }] });
say("tail", { value: await next });
tail.cancel();

logs.close();
database.close();
