//! One statement in flight for the same terms; what is asked meanwhile shares the next.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex},
};

use leasehold_store::Error;
use tokio::{sync::oneshot, task::yield_now};

use super::lock;

/// Asked by one statement at most.
const BATCH: usize = 1000;

/// Runs what was asked.
pub(super) trait Ran: Send + Sync + 'static {
    /// What askers must have in common to share a statement.
    type Terms: Clone + Eq + Hash + Send + Sync;
    /// What each asks for.
    type Ask: Copy + Send + Sync;
    /// What each is told. Dropped unread, it undoes itself.
    type Answer: Send;

    /// Answers in the order of the asks, as many.
    fn run(
        &self,
        terms: &Self::Terms,
        asks: &[Self::Ask],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Error>> + Send;
}

type Reply<R> = oneshot::Sender<Result<<R as Ran>::Answer, Arc<Error>>>;

/// What one statement asks for, and who waits for it.
type Batch<R> = (Vec<<R as Ran>::Ask>, Vec<Reply<R>>);

/// Who waits, by terms. Terms are listed while a task serves them.
type Waiting<R> = HashMap<<R as Ran>::Terms, VecDeque<(<R as Ran>::Ask, Reply<R>)>>;

pub(super) struct Coalescer<R: Ran> {
    shared: Arc<Shared<R>>,
}

struct Shared<R: Ran> {
    asker: R,
    waiting: Mutex<Waiting<R>>,
}

impl<R: Ran> Coalescer<R> {
    pub(super) fn new(asker: R) -> Self {
        Self { shared: Arc::new(Shared { asker, waiting: Mutex::default() }) }
    }

    pub(super) fn asker(&self) -> &R {
        &self.shared.asker
    }

    /// The answer comes first come first served.
    pub(super) fn ask(
        &self,
        terms: R::Terms,
        ask: R::Ask,
    ) -> oneshot::Receiver<Result<R::Answer, Arc<Error>>> {
        let (reply, answer) = oneshot::channel();
        let mut waiting = lock(&self.shared.waiting);
        if let Some(queue) = waiting.get_mut(&terms) {
            queue.push_back((ask, reply));
        } else {
            waiting.insert(terms.clone(), VecDeque::from([(ask, reply)]));
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move { shared.serve(terms).await });
        }
        answer
    }
}

impl<R: Ran> Shared<R> {
    async fn serve(&self, terms: R::Terms) {
        let mut unfinished = Unfinished(Some((self, &terms)));
        loop {
            // Whoever was woken together with the first asks before the statement goes.
            yield_now().await;
            let Some((asks, replies)) = self.next(&terms) else { break };
            match self.asker.run(&terms, &asks).await {
                // An answer whose asker has gone is dropped here, and undoes itself.
                Ok(answers) => std::iter::zip(replies, answers).for_each(|(reply, answer)| {
                    let _ = reply.send(Ok(answer));
                }),
                Err(error) => {
                    let error = Arc::new(error);
                    for reply in replies {
                        let _ = reply.send(Err(Arc::clone(&error)));
                    }
                }
            }
        }
        unfinished.0 = None;
    }

    /// Those who still wait; none, and the terms are forgotten, when nobody does.
    fn next(&self, terms: &R::Terms) -> Option<Batch<R>> {
        let mut waiting = lock(&self.waiting);
        let queue = waiting.get_mut(terms)?;
        queue.retain(|(_, reply)| !reply.is_closed());
        if queue.is_empty() {
            waiting.remove(terms);
            return None;
        }
        let size = queue.len().min(BATCH);
        Some(queue.drain(..size).unzip())
    }
}

/// A statement that panics takes those who wait with it, not those who come later.
struct Unfinished<'a, R: Ran>(Option<(&'a Shared<R>, &'a R::Terms)>);

impl<R: Ran> Drop for Unfinished<'_, R> {
    fn drop(&mut self) {
        if let Some((shared, terms)) = self.0 {
            lock(&shared.waiting).remove(terms);
        }
    }
}
