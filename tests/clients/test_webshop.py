"""docs/webshop.md, run as it stands."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import psycopg

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "webshop.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE_ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def section(title):
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def blocks(title, language):
    return [text for kind, text in BLOCK.findall(section(title)) if kind == language]


def table(text):
    rows = [tuple(cell.strip() for cell in row.split("|")) for row in TABLE_ROW.findall(text)]
    return [row for row in rows[1:] if row]


class Webshop(unittest.TestCase):
    def setUp(self):
        self.connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.addCleanup(self.connection.close)
        self.connection.execute("DROP TABLE IF EXISTS orders, invoices")

    def run_sql(self, text):
        """Returns the rows of the last statement."""
        cursor = self.connection.execute(text)
        while cursor.nextset():
            pass
        return [tuple(str(cell) for cell in row) for row in cursor.fetchall()] if cursor.description else []

    def until(self, what, query, wanted, seconds=30):
        deadline = time.monotonic() + seconds
        while (found := self.run_sql(query)) != wanted:
            self.assertLess(time.monotonic(), deadline, f"{what}: {found}")
            time.sleep(0.05)

    def consume(self):
        (program,) = blocks("The consumer", "python")
        return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)

    def stop(self, consumer):
        consumer.send_signal(signal.SIGKILL)
        return consumer.communicate()[1]

    def test_the_page_does_what_it_says(self):
        for title in ("The shop's database", "Order and message, in one transaction"):
            for text in blocks(title, "sql"):
                self.run_sql(text)
        consumer = self.consume()
        try:
            poison = section("The poison message")
            (query,) = blocks("The poison message", "sql")
            wanted = [row for row in table(poison) if not row[0].startswith("---")]
            self.until("the dead letter", query, wanted)
            self.assertEqual(self.run_sql("SELECT order_id FROM invoices"), [("1",)])
            repair, then = blocks("Repaired and sent back", "sql")
            self.assertEqual(self.run_sql(repair), [("1",)])
            wanted = [row for row in table(section("Repaired and sent back")) if not row[0].startswith("---")]
            self.until("the invoices", then, wanted)
        finally:
            complaints = self.stop(consumer)
        self.assertEqual(complaints.count("delivery 3"), 1, complaints)
        self.until("nothing left", "SELECT total FROM leasehold.queue_stats('invoices')", [("0",)])

    def test_a_consumer_that_is_killed_again_and_again_invoices_each_order_once(self):
        for text in blocks("The shop's database", "sql"):
            self.run_sql(text.replace("30 seconds", "1 second").replace('"max_deliveries": 3', '"max_deliveries": 100'))
        for order in range(60):
            with self.connection.transaction():
                self.run_sql(f"INSERT INTO orders VALUES ({order}, 'c{order % 7}', 1)")
                self.run_sql(f"""SELECT leasehold.send('invoices', '{{"order": {order}}}', group_id => 'c{order % 7}')""")
        deadline = time.monotonic() + 90
        while self.run_sql("SELECT count(*) FROM invoices") != [("60",)]:
            self.assertLess(time.monotonic(), deadline)
            consumer = self.consume()
            before = self.run_sql("SELECT count(*) FROM invoices")
            while self.run_sql("SELECT count(*) FROM invoices") == before and time.monotonic() < deadline:
                time.sleep(0.002)
            self.stop(consumer)
        self.until("nothing left", "SELECT total FROM leasehold.queue_stats('invoices')", [("0",)])
