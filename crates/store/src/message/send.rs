//! Sending: now or at a time, any number, all or nothing.

use std::{ops::Range, time::Duration};

use deadpool_postgres::Object;
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::{Transaction, types::ToSql};

use super::NewMessage;
use crate::{
    Error, Store,
    error::is_transient,
    statement,
    store::{Params, TRIES, column},
};

/// A chunk ends at this many messages or bytes, whichever comes first: one message of the wire must hold it.
const CHUNK_MESSAGES: usize = 1000;
const CHUNK_BYTES: usize = 16 << 20;

impl Store {
    /// Sends all of `messages` to a queue or topic, or none, and returns the sequence number of each, in their
    /// order. Any number: they go in chunks, in one transaction. Nothing given: no statement.
    ///
    /// To a topic, each subscription that accepts the message gets a copy; the number is the lowest of the copies',
    /// 0 when nobody accepted. Where the queue deduplicates, a repeat within the window sends nothing and has the
    /// first one's number; with another body it has 0, and the rest is sent.
    ///
    /// Dropped half way, or after a lost reply: the messages may have been sent. Repeat it where the queue
    /// deduplicates.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`], [`Error::PayloadTooLarge`], [`Error::GroupRequired`], [`Error::InvalidArgument`].
    /// Nothing is sent then.
    pub async fn send(&self, queue: &str, messages: &[NewMessage]) -> Result<Vec<i64>, Error> {
        self.send_all(queue, messages, None).await
    }

    /// As [`Store::send`], for one message: its sequence number, 0 when no subscription of a topic accepted it.
    ///
    /// # Errors
    /// As [`Store::send`], and [`Error::DedupConflict`] for a repeat within the window with another body.
    pub async fn send_one(&self, queue: &str, message: &NewMessage) -> Result<i64, Error> {
        let body: &[u8] = &message.body;
        let ttl = message.ttl.map(|ttl| ttl.as_secs_f64());
        let params: Params<'_> = &[
            &queue,
            &body,
            &message.message_id,
            &message.group_id,
            &message.correlation_id,
            &message.reply_to,
            &message.subject,
            &message.content_type,
            &properties(message),
            &ttl,
        ];
        self.query_one(&statement::MESSAGE_SEND, params).await.and_then(|row| column(&row, 0))
    }

    /// As [`Store::send`]; nobody receives the messages before `at`, which must be in the future by the database's
    /// clock.
    ///
    /// # Errors
    /// As [`Store::send`]; [`Error::InvalidArgument`] for a time that is past.
    pub async fn schedule(
        &self,
        queue: &str,
        messages: &[NewMessage],
        at: Timestamp,
    ) -> Result<Vec<i64>, Error> {
        self.send_all(queue, messages, Some(&vec![Some(at); messages.len()])).await
    }

    /// As [`Store::send`], each message now or at a time of its own, in one transaction: `ats` has one for each.
    ///
    /// # Errors
    /// As [`Store::schedule`]; [`Error::InvalidArgument`] when there are not as many times as messages.
    pub async fn send_at(
        &self,
        queue: &str,
        messages: &[NewMessage],
        ats: &[Option<Timestamp>],
    ) -> Result<Vec<i64>, Error> {
        if ats.len() != messages.len() {
            let problem = format!("{} times are given for {} messages", ats.len(), messages.len());
            return Err(Error::InvalidArgument(problem));
        }
        let ats = ats.iter().any(Option::is_some).then_some(ats);
        self.send_all(queue, messages, ats).await
    }

    /// Takes a scheduled message back. Do not repeat it after a lost reply: the message is gone, and says so.
    ///
    /// # Errors
    /// [`Error::NotFound`] unless it is scheduled and was never delivered.
    pub async fn cancel_scheduled(&self, queue: &str, seq: i64) -> Result<(), Error> {
        self.query(&statement::MESSAGE_CANCEL_SCHEDULED, &[&queue, &seq]).await.map(|_| ())
    }

    async fn send_all(
        &self,
        queue: &str,
        messages: &[NewMessage],
        ats: Option<&[Option<Timestamp>]>,
    ) -> Result<Vec<i64>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let chunks = chunks(messages);
        if let [only] = chunks.as_slice() {
            let columns = Columns::of(queue, messages, ats, only);
            let row = self.query_one(&statement::MESSAGE_SEND_MANY, &columns.params()).await?;
            return column(&row, 0);
        }
        let mut tried = 1;
        loop {
            match self.send_in_transaction(queue, messages, &chunks, ats).await {
                Err(Error::Database { source, .. }) if tried < TRIES && is_transient(&source) => tried += 1,
                result => return result,
            }
        }
    }

    async fn send_in_transaction(
        &self,
        queue: &str,
        messages: &[NewMessage],
        chunks: &[Range<usize>],
        ats: Option<&[Option<Timestamp>]>,
    ) -> Result<Vec<i64>, Error> {
        let operation = statement::MESSAGE_SEND_MANY.name;
        let failed = |e| Error::from_postgres(operation, e);
        let mut client: Object = self.client(operation).await?;
        let transaction: Transaction<'_> = (**client).transaction().await.map_err(failed)?;
        let prepared = transaction.prepare(statement::MESSAGE_SEND_MANY.sql).await.map_err(failed)?;
        let mut seqs = Vec::with_capacity(messages.len());
        for chunk in chunks {
            let columns = Columns::of(queue, messages, ats, chunk);
            let params: Params<'_> = &columns.params();
            let row = transaction.query_one(&prepared, params).await.map_err(failed)?;
            seqs.extend(column::<Vec<i64>>(&row, 0)?);
        }
        transaction.commit().await.map_err(failed)?;
        Ok(seqs)
    }
}

fn properties(message: &NewMessage) -> Option<Value> {
    (!message.properties.is_empty()).then(|| serde_json::json!(message.properties))
}

/// Bounded in number and bytes.
fn chunks(messages: &[NewMessage]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (n, message) in messages.iter().enumerate() {
        if n > start && (n - start >= CHUNK_MESSAGES || bytes + message.body.len() > CHUNK_BYTES) {
            chunks.push(start..n);
            (start, bytes) = (n, 0);
        }
        bytes += message.body.len();
    }
    chunks.push(start..messages.len());
    chunks
}

type Texts<'a> = Option<Vec<Option<&'a str>>>;

/// A chunk as the arrays that the statement takes. A column that no message uses is NULL.
struct Columns<'a> {
    queue: &'a str,
    bodies: Vec<&'a [u8]>,
    message_ids: Texts<'a>,
    group_ids: Texts<'a>,
    correlation_ids: Texts<'a>,
    reply_tos: Texts<'a>,
    subjects: Texts<'a>,
    content_types: Texts<'a>,
    properties: Option<Vec<Option<Value>>>,
    ttls: Option<Vec<Option<f64>>>,
    ats: Option<&'a [Option<Timestamp>]>,
}

impl<'a> Columns<'a> {
    fn of(
        queue: &'a str,
        messages: &'a [NewMessage],
        ats: Option<&'a [Option<Timestamp>]>,
        chunk: &Range<usize>,
    ) -> Self {
        let messages = &messages[chunk.clone()];
        Self {
            queue,
            bodies: messages.iter().map(|m| &*m.body).collect(),
            message_ids: used(messages, |m| m.message_id.as_deref()),
            group_ids: used(messages, |m| m.group_id.as_deref()),
            correlation_ids: used(messages, |m| m.correlation_id.as_deref()),
            reply_tos: used(messages, |m| m.reply_to.as_deref()),
            subjects: used(messages, |m| m.subject.as_deref()),
            content_types: used(messages, |m| m.content_type.as_deref()),
            properties: used(messages, properties),
            ttls: used(messages, |m| m.ttl.as_ref().map(Duration::as_secs_f64)),
            ats: ats.map(|ats| &ats[chunk.clone()]),
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.queue,
            &self.bodies,
            &self.message_ids,
            &self.group_ids,
            &self.correlation_ids,
            &self.reply_tos,
            &self.subjects,
            &self.content_types,
            &self.properties,
            &self.ttls,
            &self.ats,
        ]
    }
}

fn used<'a, T>(
    messages: &'a [NewMessage],
    column: impl Fn(&'a NewMessage) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = messages.iter().map(column).collect();
    values.iter().any(Option::is_some).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_in_number_and_bytes_and_leave_nothing_out() {
        let ends = |messages: &[NewMessage]| -> Vec<(usize, usize)> {
            chunks(messages).into_iter().map(|chunk| (chunk.start, chunk.end)).collect()
        };
        let few = vec![NewMessage::new("body"); CHUNK_MESSAGES];
        assert_eq!(ends(&few), [(0, CHUNK_MESSAGES)]);
        let many = vec![NewMessage::new("body"); CHUNK_MESSAGES + 1];
        assert_eq!(ends(&many), [(0, CHUNK_MESSAGES), (CHUNK_MESSAGES, CHUNK_MESSAGES + 1)]);
        let large = vec![NewMessage::new(vec![0; CHUNK_BYTES]); 2];
        assert_eq!(ends(&large), [(0, 1), (1, 2)]);
    }
}
