//! The doorbell: one connection that listens, and is opened again when it breaks.
//!
//! A bell is a hint. It may be lost while the connection is down, so whoever waits also looks by itself now and
//! then, and at once when told that the connection is back.

use std::{collections::HashMap, future::poll_fn, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, interval_at, sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client};

use crate::{Error, Store, statement};

/// How often a silent connection is asked whether it is still there, and how long it may take to answer.
const PROBE: Duration = Duration::from_secs(10);
/// Between two attempts to connect.
const RECONNECT: Duration = Duration::from_millis(500);

/// Why a subscriber is woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bell {
    /// A notification, with its payload.
    Rung(String),
    /// The connection is up, for the first time or again: bells may have been missed.
    Connected,
}

/// Listens for any number of subscribers on one connection. Dropping it ends the connection.
#[derive(Debug)]
pub struct Listener {
    subscriptions: mpsc::Sender<(String, mpsc::Sender<Bell>)>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Starts listening with a connection of its own, outside the pool of `store`.
    pub fn start(store: &Store) -> Self {
        let (subscriptions, incoming) = mpsc::channel(64);
        let task = tokio::spawn(keep_listening(store.clone(), incoming));
        Self { subscriptions, task }
    }

    /// Bells of a channel. A subscriber that does not read is not waited for: it has a bell waiting anyway.
    /// Dropping the receiver ends the subscription.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name longer than 63 bytes, which Postgres would cut.
    pub async fn subscribe(&self, channel: &str) -> Result<mpsc::Receiver<Bell>, Error> {
        if channel.is_empty() || channel.len() > 63 || channel.contains('\0') {
            return Err(Error::InvalidArgument(format!("channel \"{channel}\" must have 1 to 63 bytes")));
        }
        let (bell, bells) = mpsc::channel(64);
        // The task ends only with the runtime.
        let _ = self.subscriptions.send((channel.to_owned(), bell)).await;
        Ok(bells)
    }
}

type Subscribers = HashMap<String, Vec<mpsc::Sender<Bell>>>;

async fn keep_listening(store: Store, mut incoming: mpsc::Receiver<(String, mpsc::Sender<Bell>)>) {
    let mut subscribers = Subscribers::new();
    loop {
        if let Err(error) = listen(&store, &mut incoming, &mut subscribers).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the listening connection broke; it is opened again"
            );
            metrics::counter!("leasehold_listener_reconnects_total").increment(1);
        }
        sleep(RECONNECT).await;
    }
}

/// One life of the connection.
async fn listen(
    store: &Store,
    incoming: &mut mpsc::Receiver<(String, mpsc::Sender<Bell>)>,
    subscribers: &mut Subscribers,
) -> Result<(), Error> {
    let failed = |e| Error::from_postgres("listen", e);
    let shared = &store.shared;
    let (client, mut connection) = shared.config.connect(shared.tls.clone()).await.map_err(failed)?;
    let (notes, mut notifications) = mpsc::channel(1024);
    // Ends with the connection, which ends when the client is dropped.
    let pump = tokio::spawn(async move {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                Ok(AsyncMessage::Notification(note)) => {
                    // When nobody keeps up, the bell waiting is enough.
                    let _ = notes.try_send(note);
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    for channel in subscribers.keys() {
        subscribe(&client, channel).await?;
    }
    ring_all(subscribers, &Bell::Connected);

    let mut probe = interval_at(Instant::now() + PROBE, PROBE);
    loop {
        tokio::select! {
            note = notifications.recv() => match note {
                Some(note) => ring(subscribers, note.channel(), &Bell::Rung(note.payload().to_owned())),
                None => return pump.await.unwrap_or(Ok(())).map_err(failed),
            },
            subscription = incoming.recv() => {
                let Some((channel, bell)) = subscription else { return Ok(()) };
                // Known before it is asked for, so that it is not lost when the connection breaks now.
                subscribers.entry(channel.clone()).or_default().push(bell);
                subscribe(&client, &channel).await?;
                ring(subscribers, &channel, &Bell::Connected);
            }
            _ = probe.tick() => {
                subscribers.retain(|_, bells| { bells.retain(|bell| !bell.is_closed()); !bells.is_empty() });
                timeout(PROBE, client.simple_query("")).await
                    .map_err(|_| Error::Timeout { operation: "listen", limit: PROBE })?
                    .map_err(failed)?;
            }
        }
    }
}

/// LISTEN takes no parameter, so the channel's name goes by a setting of the session.
async fn subscribe(client: &Client, channel: &str) -> Result<(), Error> {
    let asked = async {
        client.query(statement::SESSION_NAME_CHANNEL.sql, &[&channel]).await?;
        client.execute(statement::SESSION_LISTEN.sql, &[]).await
    };
    timeout(PROBE, asked)
        .await
        .map_err(|_| Error::Timeout { operation: "listen", limit: PROBE })?
        .map(|_| ())
        .map_err(|e| Error::from_postgres("listen", e))
}

fn ring(subscribers: &Subscribers, channel: &str, bell: &Bell) {
    for subscriber in subscribers.get(channel).into_iter().flatten() {
        let _ = subscriber.try_send(bell.clone());
    }
}

fn ring_all(subscribers: &Subscribers, bell: &Bell) {
    for channel in subscribers.keys() {
        ring(subscribers, channel, bell);
    }
}
