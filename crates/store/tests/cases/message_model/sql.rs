//! Rows as the walk compares them, those that SQL shows and those that the oracle expects.

use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::oracle::{Message, Ms, SECOND, State};

/// Within which a time of the database is that of the model: its own time went on while a step was at work.
const NEAR: Ms = 2 * SECOND;

/// The SQLSTATE where it is refused.
pub(crate) type Answer = Result<Vec<SimpleQueryRow>, String>;

pub(crate) async fn rows(client: &Client, statement: &str) -> Answer {
    match client.simple_query(statement).await {
        Ok(messages) => Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            })
            .collect()),
        Err(error) => {
            let Some(db) = error.as_db_error() else { panic!("{statement}: {error:?}") };
            let code = db.code().code();
            assert!(code.starts_with("LH"), "{statement}: {error:?}");
            Err(code.to_owned())
        }
    }
}

pub(crate) fn number(row: &SimpleQueryRow, column: &str) -> i64 {
    row.get(column).unwrap().parse().unwrap()
}

/// NULL, or a literal.
pub(crate) fn literal(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".into(), |text| format!("'{}'", text.replace('\'', "''")))
}

pub(crate) fn interval(ms: Option<Ms>) -> String {
    ms.map_or_else(|| "NULL".into(), |ms| format!("interval '{ms} ms'"))
}

/// `{1,2}` of a column.
pub(crate) fn elements(row: &SimpleQueryRow, column: &str) -> Vec<String> {
    let text = row.get(column).unwrap().trim_matches(['{', '}']);
    text.split(',').filter(|e| !e.is_empty()).map(Into::into).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) seq: i64,
    texts: Vec<Option<String>>,
    times: Vec<Option<Ms>>,
}

pub(crate) const RECEIVED: &str = "seq, message_id, group_id, subject, properties ->> 'tier' AS tier,
    (extract(epoch FROM ttl) * 1000)::bigint AS ttl, convert_from(body, 'UTF8') AS body, delivery_count,
    (extract(epoch FROM enqueued_at) * 1000)::bigint AS enqueued, (extract(epoch FROM locked_until) * 1000)::bigint AS locked,
    lock_token";
pub(crate) const PEEKED: &str = "seq, message_id, group_id, subject, properties ->> 'tier' AS tier,
    (extract(epoch FROM ttl) * 1000)::bigint AS ttl, convert_from(body, 'UTF8') AS body, delivery_count,
    (extract(epoch FROM enqueued_at) * 1000)::bigint AS enqueued, (extract(epoch FROM locked_until) * 1000)::bigint AS locked,
    state, dead_letter_reason AS reason, dead_letter_description AS description,
    (extract(epoch FROM visible_at) * 1000)::bigint AS visible, (extract(epoch FROM expires_at) * 1000)::bigint AS expires,
    (extract(epoch FROM dead_at) * 1000)::bigint AS dead";

const RECEIVED_TEXTS: [&str; 8] =
    ["message_id", "group_id", "subject", "tier", "ttl", "body", "delivery_count", "lock_token"];
const RECEIVED_TIMES: [&str; 2] = ["enqueued", "locked"];
const PEEKED_TEXTS: [&str; 10] = [
    "message_id",
    "group_id",
    "subject",
    "tier",
    "ttl",
    "body",
    "delivery_count",
    "state",
    "reason",
    "description",
];
const PEEKED_TIMES: [&str; 5] = ["enqueued", "locked", "visible", "expires", "dead"];

impl Shown {
    fn read(row: &SimpleQueryRow, texts: &[&str], times: &[&str], offset: Ms) -> Self {
        let time = |name: &&str| row.get(*name).map(|ms| ms.parse::<Ms>().unwrap() - offset);
        Self {
            seq: number(row, "seq"),
            texts: texts.iter().map(|name| row.get(*name).map(Into::into)).collect(),
            times: times.iter().map(time).collect(),
        }
    }

    pub(crate) fn received(row: &SimpleQueryRow, offset: Ms) -> Self {
        Self::read(row, &RECEIVED_TEXTS, &RECEIVED_TIMES, offset)
    }

    pub(crate) fn peeked(row: &SimpleQueryRow, offset: Ms) -> Self {
        Self::read(row, &PEEKED_TEXTS, &PEEKED_TIMES, offset)
    }

    pub(crate) fn of_received(seq: i64, message: &Message) -> Self {
        let (until, token) = match &message.state {
            State::Locked { until, token } => (Some(*until), Some(token.clone())),
            _ => (None, None),
        };
        let mut texts = kept(message);
        texts.push(token);
        Self { seq, texts, times: vec![Some(message.enqueued), until] }
    }

    pub(crate) fn of_peeked(seq: i64, message: &Message) -> Self {
        let mut texts = kept(message);
        texts.push(Some(message.state.word().into()));
        let mut times = vec![Some(message.enqueued), None, Some(message.visible), message.expires, None];
        match &message.state {
            State::Locked { until, .. } => times[1] = Some(*until),
            State::Dead { at, reason, description } => {
                times[4] = Some(*at);
                texts.extend([Some(reason.clone()), description.clone()]);
            }
            _ => {}
        }
        texts.resize(PEEKED_TEXTS.len(), None);
        Self { seq, texts, times }
    }

    /// An id that was drawn is not known before.
    pub(crate) fn is(&self, expected: &Self) -> bool {
        let near = |(a, b): (&Option<Ms>, &Option<Ms>)| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < NEAR,
            (a, b) => a == b,
        };
        let drawn = expected.texts[0].is_none() && self.texts[0].is_some();
        self.seq == expected.seq
            && (drawn || self.texts[0] == expected.texts[0])
            && self.texts[1..] == expected.texts[1..]
            && self.times.len() == expected.times.len()
            && self.times.iter().zip(&expected.times).all(near)
    }
}

/// What is kept as it was sent, and the delivery count.
fn kept(message: &Message) -> Vec<Option<String>> {
    let draft = &message.draft;
    vec![
        draft.id.clone(),
        draft.group.clone(),
        draft.subject.clone(),
        draft.tier.clone(),
        draft.ttl.map(|ms| ms.to_string()),
        Some(draft.body.clone()),
        Some(message.deliveries.to_string()),
    ]
}

#[track_caller]
pub(crate) fn assert_same(what: &str, shown: &[Shown], expected: &[Shown]) {
    let same = shown.len() == expected.len() && shown.iter().zip(expected).all(|(a, b)| a.is(b));
    if !same {
        let list = |rows: &[Shown]| rows.iter().map(|row| format!("\n    {row:?}")).collect::<String>();
        panic!("{what}\n  database:{}\n  model:{}", list(shown), list(expected));
    }
}
