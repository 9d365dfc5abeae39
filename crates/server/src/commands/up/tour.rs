//! What `leasehold up` prints once all of it is ready. Programs read the first two lines.

use std::net::SocketAddr;

use super::{DISPATCHERS, QUEUE, ROUTE};
use crate::database::{DEFAULT_SCHEMA, Place};

/// `DATABASE_URL=…`, `READY`, and what to do with them.
pub(super) fn text(place: &Place, http: SocketAddr, api: SocketAddr) -> String {
    let (url, schema) = (&place.url.0, &place.schema);
    let option = if schema == DEFAULT_SCHEMA { String::new() } else { format!(" --schema {schema}") };
    format!(
        "\
DATABASE_URL={url}
READY

{DISPATCHERS} dispatchers share the queue \"{QUEUE}\". They send its requests to a stand-in backend, which answers
each with its own question; the results go to the route that a request names. In another terminal:

  psql '{url}'

Enqueue 10,000 requests in one statement:

  SELECT count(*) FROM (SELECT {schema}.enqueue('{QUEUE}', jsonb_build_object('model', 'demo', 'messages',
    jsonb_build_array(jsonb_build_object('role', 'user', 'content', 'question ' || n))), route => '{ROUTE}')
    FROM generate_series(1, 10000) n) x;

Pop their results:

  SELECT id, status, body_text FROM {schema}.pop_results('{ROUTE}', 10000);

The same over HTTP, for programs that do not speak SQL; http://{api}/openapi.json describes it all:

  curl http://{api}/v1/queues/{QUEUE}/enqueue --json '{{\"requests\": [{{\"route\": \"{ROUTE}\",
    \"payload\": {{\"model\": \"demo\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}}}]}}'
  curl http://{api}/v1/routes/{ROUTE}/pop --json '{{\"wait\": \"5s\"}}'

Look at it:

  leasehold status --watch --database-url '{url}'{option}
  curl http://{http}/metrics

Ctrl-C stops everything; the data stays.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_lines_are_for_programs() {
        let place =
            Place { url: "postgres://leasehold@127.0.0.1:5/leasehold".to_owned().into(), schema: "x".into() };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = text(&place, at(9090), at(9091));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["DATABASE_URL=postgres://leasehold@127.0.0.1:5/leasehold", "READY"]);
        assert!(text.contains("x.pop_results('replies', 10000)") && text.contains("--schema x"));
        assert!(text.contains("http://127.0.0.1:9091/v1/queues/demo/enqueue --json '{\"requests\": [{"));
    }
}
