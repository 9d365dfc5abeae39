// The SQL interface from JavaScript, as a producer and a poller would use it.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { after, test } = require('node:test');
const { Pool } = require('pg');

const urls = { directly: process.env.DATABASE_URL, 'through a pooler': process.env.POOLER_URL };
const chat = (content) => ({ model: 'demo', messages: [{ role: 'user', content }] });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function popAll(pool, route, count, ms = 20000) {
  const results = [];
  const deadline = Date.now() + ms;
  while (results.length < count && Date.now() < deadline) {
    results.push(...(await pool.query('SELECT * FROM leasehold.pop_results($1, 100)', [route])).rows);
    await pause(20);
  }
  return results;
}

for (const [way, url] of Object.entries(urls)) {
  const pool = new Pool({ connectionString: url, max: 3 });
  after(() => pool.end());

  test(`${way}: enqueue commits or rolls back with the caller's transaction`, async () => {
    const route = `node-${randomUUID()}`;
    const client = await pool.connect();
    try {
      for (const end of ['COMMIT', 'ROLLBACK']) {
        await client.query('BEGIN');
        await client.query('SELECT * FROM leasehold.enqueue($1, $2::jsonb, id => $3, route => $4)',
          ['demo', chat(end), `${route}-${end}`, route]);
        await client.query(end);
      }
    } finally {
      client.release();
    }
    const results = await popAll(pool, route, 1);
    assert.deepEqual(results.map((row) => row.id), [`${route}-COMMIT`]);
    assert.match(results[0].body_text, /COMMIT/);
    assert.deepEqual(await popAll(pool, route, 1, 500), []);
  });

  test(`${way}: text, bytes and arrays arrive verbatim`, async () => {
    const route = `node-${randomUUID()}`;
    const document = JSON.stringify(chat('smörgåsbord 🥪'));
    await pool.query('SELECT leasehold.enqueue($1, $2, route => $3)', ['demo', document, route]);
    await pool.query('SELECT leasehold.enqueue($1, $2::bytea, route => $3)', ['demo', Buffer.from(document), route]);
    await pool.query('SELECT leasehold.enqueue_many($1, $2::text[], routes => $3)',
      ['demo', Array(50).fill(document), Array(50).fill(route)]);
    const results = await popAll(pool, route, 52);
    assert.equal(results.length, 52);
    for (const { status, code, body, body_text: text } of results) {
      assert.deepEqual([status, code, body.toString()], [200, null, text]);
      assert.match(text, /smörgåsbord 🥪/);
    }
  });

  test(`${way}: an error has its SQLSTATE and names the argument`, async () => {
    await assert.rejects(pool.query('SELECT leasehold.enqueue($1, $2, id => $3)', ['demo', 'x', '']),
      (error) => error.code === 'LH001' && error.message.startsWith('id '));
    await assert.rejects(pool.query('SELECT * FROM leasehold.backlog($1)', ['nobody knows it']),
      (error) => error.code === 'LH002' && error.message.includes('nobody knows it'));
  });
}

test('a listener is woken', async () => {
  const pool = new Pool({ connectionString: urls.directly });
  after(() => pool.end());
  const route = `node-${randomUUID()}`;
  const client = await pool.connect();
  const { channel } = (await client.query('SELECT leasehold.listen_results($1) AS channel', [route])).rows[0];
  const rung = new Promise((resolve) => client.once('notification', resolve));
  await client.query(`LISTEN "${channel}"`);
  await pool.query('SELECT leasehold.enqueue($1, $2::jsonb, route => $3)', ['demo', chat('ring'), route]);
  assert.equal((await rung).channel, channel);
  assert.equal((await popAll(pool, route, 1)).length, 1);
  client.release();
});
