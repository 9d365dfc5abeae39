"""The SQL interface from Python, as a producer and a poller would use it."""

import json
import os
import pathlib
import time
import unittest
import uuid

import psycopg
from psycopg.types.json import Json, Jsonb

URL = os.environ["DATABASE_URL"]
OPERATOR = os.environ["OPERATOR_URL"]
POOLER = os.environ["POOLER_URL"]


def connect(url=URL, **options):
    # Behind a pooler in transaction mode no prepared statement outlives its transaction.
    prepare = None if url == POOLER else 5
    return psycopg.connect(url, prepare_threshold=prepare, **options)


def pop_all(connection, route, count, seconds=20):
    """Pops until `count` results have come."""
    results, deadline = [], time.monotonic() + seconds
    while len(results) < count and time.monotonic() < deadline:
        with connection.transaction():
            results += connection.execute(
                "SELECT id, status, code, body, body_text FROM leasehold.pop_results(%s, 100)", (route,)
            ).fetchall()
        time.sleep(0.02)
    return results


def chat(text):
    return {"model": "demo", "messages": [{"role": "user", "content": text}]}


class Producer(unittest.TestCase):
    url = URL

    def setUp(self):
        self.connection = connect(self.url, autocommit=True)
        self.addCleanup(self.connection.close)
        self.route = f"python-{uuid.uuid4()}"

    def test_enqueue_commits_and_rolls_back_with_the_business_write(self):
        table = f"orders_{uuid.uuid4().hex}"
        self.connection.execute(f"CREATE TABLE {table} (id int)")
        for order, fails in ((1, False), (2, True)):
            try:
                with self.connection.transaction():
                    self.connection.execute(f"INSERT INTO {table} VALUES (%s)", (order,))
                    self.connection.execute(
                        "SELECT leasehold.enqueue('demo', %s, id => %s, route => %s)",
                        (Jsonb(chat(f"order {order}")), f"{self.route}-{order}", self.route),
                    )
                    if fails:
                        raise RuntimeError("the business says no")
            except RuntimeError:
                pass
        self.assertEqual(self.connection.execute(f"SELECT id FROM {table}").fetchall(), [(1,)])
        results = pop_all(self.connection, self.route, 1)
        self.assertEqual([row[0] for row in results], [f"{self.route}-1"])
        self.assertIn("order 1", results[0][4])
        self.assertEqual(pop_all(self.connection, self.route, 1, seconds=0.5), [])

    def test_payloads_as_text_json_jsonb_and_bytes(self):
        document = chat("héllo ✓")
        payloads = (json.dumps(document), Json(document), Jsonb(document), json.dumps(document).encode())
        for payload in payloads:
            self.connection.execute(
                "SELECT * FROM leasehold.enqueue('demo', %s, route => %s)", (payload, self.route)
            )
        results = pop_all(self.connection, self.route, len(payloads))
        self.assertEqual(len(results), len(payloads))
        for _, status, code, body, text in results:
            self.assertEqual((status, code), (200, None))
            self.assertEqual(body.decode(), text)
            self.assertIn("héllo ✓", json.loads(text)["choices"][0]["message"]["content"])

    def test_a_thousand_in_one_statement_each_answered_once(self):
        ids = [f"{self.route}-{n}" for n in range(1000)]
        rows = self.connection.execute(
            "SELECT * FROM leasehold.enqueue_many('demo', %s::text[], ids => %s, routes => %s)",
            ([json.dumps(chat(f"number {id}")) for id in ids], ids, [self.route] * len(ids)),
        ).fetchall()
        self.assertEqual([row[0] for row in rows], ids)
        self.assertEqual([row[2] for row in rows], sorted(row[2] for row in rows))
        results = pop_all(self.connection, self.route, len(ids))
        self.assertEqual(sorted(row[0] for row in results), sorted(ids))
        for id, _, _, _, text in results:
            self.assertIn(f"number {id}", text)

    def test_a_repeat_is_the_same_submission_even_when_it_is_done(self):
        enqueue = "SELECT * FROM leasehold.enqueue('demo', %s, id => %s, token => 'once', route => %s)"
        first = self.connection.execute(enqueue, (Jsonb(chat("once")), self.route, self.route)).fetchone()
        self.assertEqual(len(pop_all(self.connection, self.route, 1)), 1)
        again = self.connection.execute(enqueue, (Jsonb(chat("once")), self.route, self.route)).fetchone()
        self.assertEqual(first, again)
        self.assertEqual(pop_all(self.connection, self.route, 1, seconds=0.5), [])
        with self.assertRaises(psycopg.Error) as caught:
            self.connection.execute(enqueue, (Jsonb(chat("twice")), self.route, self.route))
        self.assertEqual(caught.exception.sqlstate, "LH003")
        self.assertIn(self.route, str(caught.exception))

    def test_errors_name_the_argument_and_change_nothing(self):
        for arguments, name in (
            ("'demo', NULL::text", "payload"),
            ("'', 'x'", "queue"),
            ("'demo', 'x', id => ''", "id"),
            ("'demo', 'x', deadline => '-infinity'", "deadline"),
            ("'demo', 'x', not_before => 'infinity'", "not_before"),
            ("""'demo', 'x', headers => '["x"]'""", "headers"),
        ):
            with self.subTest(arguments), self.assertRaises(psycopg.Error) as caught:
                self.connection.execute(f"SELECT leasehold.enqueue({arguments})")
            self.assertEqual(caught.exception.sqlstate, "LH001")
            self.assertTrue(caught.exception.diag.message_primary.startswith(name))

    def test_a_deadline_passed_and_a_cancelled_request_have_their_outcome(self):
        enqueue = "SELECT leasehold.enqueue('demo', 'x', id => %s, route => %s, {})"
        late, parked = f"{self.route}-late", f"{self.route}-parked"
        self.connection.execute(enqueue.format("deadline => now() - interval '1 hour'"), (late, self.route))
        self.connection.execute(enqueue.format("not_before => now() + interval '1 hour'"), (parked, self.route))
        state = self.connection.execute("SELECT state FROM leasehold.request_status(%s)", (parked,)).fetchone()
        self.assertEqual(state, ("parked",))
        self.assertEqual(
            self.connection.execute("SELECT leasehold.cancel(%s)", ([parked, "unknown"],)).fetchone(), (1,)
        )
        codes = {row[0]: row[2] for row in pop_all(self.connection, self.route, 2)}
        self.assertEqual(codes, {late: "DEADLINE_EXCEEDED", parked: "CANCELLED"})


class ProducerThroughAPooler(Producer):
    url = POOLER


class Poller(unittest.TestCase):
    def setUp(self):
        self.connection = connect(autocommit=True)
        self.addCleanup(self.connection.close)
        self.route = f"python-{uuid.uuid4()}"

    def enqueue(self, count):
        self.connection.execute(
            "SELECT count(leasehold.enqueue('demo', %s, route => %s)) FROM generate_series(1, %s)",
            (Jsonb(chat("poll")), self.route, count),
        )

    def test_leased_results_come_again_until_they_are_acked(self):
        self.enqueue(3)
        lease = "SELECT seq, lease FROM leasehold.lease_results(%s, 10, %s::interval)"
        deadline, leased = time.monotonic() + 20, []
        while len(leased) < 3 and time.monotonic() < deadline:
            leased += self.connection.execute(lease, (self.route, "1 hour")).fetchall()
            time.sleep(0.02)
        self.assertEqual(len(leased), 3)
        self.assertEqual(self.connection.execute("SELECT leasehold.result_depth(%s)", (self.route,)).fetchone(), (3,))
        self.assertEqual(self.connection.execute(lease, (self.route, "1 hour")).fetchall(), [])
        (acked, its_lease), (released, other_lease), _ = leased
        ack = "SELECT leasehold.ack_results(%s, %s, %s)"
        self.assertEqual(self.connection.execute(ack, (self.route, its_lease, [acked])).fetchall(), [(acked,)])
        self.assertEqual(self.connection.execute(ack, (self.route, its_lease, [acked])).fetchall(), [])
        self.connection.execute("SELECT leasehold.release_results(%s, %s, %s)", (self.route, other_lease, [released]))
        again = self.connection.execute(lease, (self.route, "1 hour")).fetchall()
        self.assertEqual([row[0] for row in again], [released])

    def test_a_listener_is_woken(self):
        (channel,) = self.connection.execute("SELECT leasehold.listen_results(%s)", (self.route,)).fetchone()
        self.connection.execute(f'LISTEN "{channel}"')
        with connect(autocommit=True) as producer:
            producer.execute("SELECT leasehold.enqueue('demo', %s, route => %s)", (Jsonb(chat("ring")), self.route))
        notified = list(self.connection.notifies(timeout=20, stop_after=1))
        self.assertEqual([notification.channel for notification in notified], [channel])
        self.assertEqual(len(pop_all(self.connection, self.route, 1)), 1)


class ReferenceExample(unittest.TestCase):
    """The program of docs/sql.md that gates itself, as it stands there."""

    def setUp(self):
        reference = pathlib.Path(__file__).parents[2] / "docs" / "sql.md"
        (program,) = [block.split("```")[0] for block in reference.read_text().split("```python\n")[1:]]
        self.program = {}
        exec(compile(program, "docs/sql.md", "exec"), self.program)
        self.key = f"quota:userid:{uuid.uuid4()}"

    def used(self):
        with connect(OPERATOR) as connection:
            listed = connection.execute("SELECT used FROM leasehold.quota_list(%s)", (self.key,)).fetchone()
        return listed and listed[0]

    def close(self, holder):
        holder.retire()
        holder.keeper.join(10)
        self.assertFalse(holder.keeper.is_alive())

    def test_holders_share_a_limit(self):
        one, other = self.program["Holder"](), self.program["Holder"]()
        with one.slot(self.key, 1) as granted:
            self.assertTrue(granted)
            with other.slot(self.key, 1) as granted:
                self.assertFalse(granted)
        self.assertEqual(self.used(), 0)
        with other.slot(self.key, 1) as granted:
            self.assertTrue(granted)
            self.assertEqual(self.used(), 1)
        for holder in (one, other):
            self.close(holder)

    def test_an_answer_that_is_lost_costs_the_holder_and_no_slot(self):
        call, holder = self.program["call"], self.program["Holder"]()

        def lose(function, *arguments):
            answer = call(function, *arguments)
            if "acquire" in function:
                self.assertEqual(answer, 1)
                raise psycopg.OperationalError("the answer is lost")
            return answer

        self.program["call"] = lose
        with self.assertRaises(psycopg.OperationalError), holder.slot(self.key, 1):
            self.fail("it has no slot")
        with self.assertRaises(RuntimeError), holder.slot(self.key, 1):
            self.fail("it is retired")
        self.close(holder)
        self.assertEqual(self.used(), 0)


if __name__ == "__main__":
    unittest.main()
