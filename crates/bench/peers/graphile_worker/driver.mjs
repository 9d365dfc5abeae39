// graphile-worker with the settings of its page on performance: 24 jobs at a time, a local queue of 500 and completions
// in batches. What the bench sends and hears is said in crates/bench/src/system/driver.rs. It keeps no results: a
// request is through once its completion is written.

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { Logger, makeWorkerUtils, run } from "graphile-worker";

const work = JSON.parse(process.argv[2]);
const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const micros = () => Number(process.hrtime.bigint() / 1000n);
const payload = () => {
  const at = micros();
  const room = Math.max(0, work.payload - `{"at":${at},"text":""}`.length);
  return { at, text: randomBytes(Math.ceil((room * 3) / 4)).toString("base64url").slice(0, room) };
};

let stopping = false;
let enqueued = 0;
let done = 0;
let took = [];

const utils = await makeWorkerUtils({ connectionString: work.url, logger: quiet });
await utils.migrate();

const runner = await run({
  taskList: { request: async () => {} },
  preset: {
    worker: {
      connectionString: work.url,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: quiet,
    },
  },
  noHandleSignals: true,
});
runner.events.on("job:complete", ({ job, error }) => {
  if (error) throw error;
  done += 1;
  took.push(micros() - job.payload.at);
});

async function produce() {
  while (!stopping) {
    if (enqueued - done >= work.backlog) {
      await pause(2);
      continue;
    }
    enqueued += work.rows;
    const one = () => ({ identifier: "request", payload: payload() });
    await utils.addJobs(Array.from({ length: work.rows }, one));
  }
}

const producers = Array.from({ length: work.producers }, produce);
const report = setInterval(() => {
  if (took.length > 0) process.stdout.write(`done ${took.join(" ")}\n`);
  took = [];
}, 100);
process.stdin.resume().on("end", async () => {
  stopping = true;
  clearInterval(report);
  await Promise.all(producers);
  await runner.stop();
  await utils.release();
  process.exit(0);
});
process.stdout.write("ready\n");
