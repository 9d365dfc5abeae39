//! Claiming for workers: each is reserved before a message is looked for, so that none waits locked for a worker.

use std::{sync::Arc, time::Duration};

use leasehold_store::{Error, Receive, ReceivedMessage};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// Messages in one look at most.
const LARGEST_CLAIM: usize = 256;
/// Between two looks when the database refuses; each pause is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Messages, and as many workers at least.
pub(super) struct Claim {
    pub(super) messages: Vec<ReceivedMessage>,
    pub(super) workers: OwnedSemaphorePermit,
    /// When the statement that answered was sent.
    pub(super) sent: Instant,
}

pub(super) struct Claims<'a> {
    pub(super) shared: &'a Shared,
    pub(super) free: Arc<Semaphore>,
    pub(super) stop: &'a CancellationToken,
}

impl Claims<'_> {
    /// The next messages; none when the work is to stop. A look under way is waited for: it may claim.
    ///
    /// # Errors
    /// What the next look would say as well.
    pub(super) async fn next(&self) -> Result<Option<Claim>, Error> {
        let reserved = tokio::select! {
            biased;
            () = self.stopped() => return Ok(None),
            reserved = Arc::clone(&self.free).acquire_owned() => reserved,
        };
        // It is never closed.
        let Ok(mut workers) = reserved else { return Ok(None) };
        let mut watch = self.shared.ring.watch();
        loop {
            self.reserve_more(&mut workers);
            watch.about_to_look();
            let Some((messages, sent)) = self.look(workers.num_permits()).await? else { return Ok(None) };
            if !messages.is_empty() {
                return Ok(Some(Claim { messages, workers, sent }));
            }
            let (stop, closing) = (self.stop, &self.shared.closing);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                () = closing.cancelled() => return Ok(None),
                () = watch.rest(Duration::MAX) => {}
            }
        }
    }

    fn reserve_more(&self, workers: &mut OwnedSemaphorePermit) {
        while workers.num_permits() < LARGEST_CLAIM
            && let Ok(worker) = Arc::clone(&self.free).try_acquire_owned()
        {
            workers.merge(worker);
        }
    }

    /// One look, repeated by its name until there is an answer: messages whose reply is lost are had nevertheless,
    /// where they would be locked for nobody, at the cost of a delivery. With it, when it was asked for. None: stopped
    /// before there was one.
    async fn look(&self, max: usize) -> Result<Option<(Vec<ReceivedMessage>, Instant)>, Error> {
        let receive = Receive {
            max: u32::try_from(max).unwrap_or(u32::MAX),
            attempt_id: Some(format!("{:032x}", rand::random::<u128>())),
            ..Receive::default()
        };
        let mut pause = SHORTEST_PAUSE;
        loop {
            let sent = Instant::now();
            let error = match self.shared.store.receive(&self.shared.queue, &receive).await {
                Ok(messages) => return Ok(Some((messages, sent))),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => error,
            };
            tracing::warn!(
                queue = self.shared.queue,
                error = &error as &dyn std::error::Error,
                "messages could not be received; it is tried again"
            );
            tokio::select! {
                biased;
                () = self.stopped() => return Ok(None),
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    async fn stopped(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.shared.closing.cancelled() => {}
        }
    }
}

/// Whether trying again is of no use until somebody has changed something.
fn is_final(error: &Error) -> bool {
    let may_pass = matches!(
        error,
        Error::Unavailable { .. } | Error::Timeout { .. } | Error::Refused { .. } | Error::Database { .. }
    );
    !may_pass
}
