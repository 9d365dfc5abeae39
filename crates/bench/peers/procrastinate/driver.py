"""procrastinate: workers that run asynchronous jobs, several at a time, and delete those that succeeded.

What the bench sends and hears is said in crates/bench/src/system/driver.rs. It keeps no results: a request is through
once its task has run.
"""

import asyncio
import json
import logging
import secrets
import sys
import time

from procrastinate import App, PsycopgConnector

CONCURRENCY = 10

work = json.loads(sys.argv[1])
logging.basicConfig(level=logging.ERROR)
# A connection for each job that runs, as its documentation says, and some for listening and deferring.
connections = work["workers"] * (CONCURRENCY + 1) + work["producers"] + 4
app = App(connector=PsycopgConnector(conninfo=work["url"], min_size=4, max_size=connections))
enqueued = 0
done = 0
took = []


def micros():
    return time.monotonic_ns() // 1000


def payload():
    at = micros()
    room = max(0, work["payload"] - len(f'{{"at":{at},"text":""}}'))
    return {"at": at, "text": secrets.token_urlsafe(room)[:room]}


@app.task(name="request")
async def request(at, text):
    global done
    done += 1
    took.append(micros() - at)


async def produce(stopping):
    global enqueued
    while not stopping.is_set():
        if enqueued - done >= work["backlog"]:
            await asyncio.sleep(0.002)
            continue
        enqueued += work["rows"]
        await request.batch_defer_async(*[payload() for _ in range(work["rows"])])


async def report():
    while True:
        await asyncio.sleep(0.1)
        if took:
            print("done", *took, flush=True)
            took.clear()


async def main():
    stopping = asyncio.Event()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        producers = [asyncio.create_task(produce(stopping)) for _ in range(work["producers"])]
        worker = dict(concurrency=CONCURRENCY, delete_jobs="successful", install_signal_handlers=False)
        workers = [asyncio.create_task(app.run_worker_async(**worker)) for _ in range(work["workers"])]
        reports = asyncio.create_task(report())
        print("ready", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        # A task that fails ends the driver, with its error.
        finished, _ = await asyncio.wait([ended, *workers, *producers], return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        for task in finished:
            task.result()
        reports.cancel()
        await asyncio.gather(*producers)
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


asyncio.run(main())
