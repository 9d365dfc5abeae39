//! One statement in flight for the same terms; what is asked meanwhile shares the next. Many terms asked for at the
//! same time share statements, too.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    sync::{Arc, Mutex},
};

use leasehold_store::Error;
use tokio::{sync::oneshot, task::yield_now};

use super::lock;

/// Asked by one statement at most.
const BATCH: usize = 1000;

/// Asked by one statement for many terms, at most.
const TERMS: usize = 256;
/// So many terms at once are asked for together; fewer, each by itself.
const MANY: usize = 4;

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

    /// Whether such terms can be asked for together with others.
    fn gathers(_: &Self::Terms) -> bool {
        false
    }

    /// Answers for many terms at once. None: these want a statement of their own.
    fn run_many(
        &self,
        batch: &[(&Self::Terms, Vec<Self::Ask>)],
    ) -> impl Future<Output = Result<Vec<Option<Vec<Self::Answer>>>, Error>> + Send {
        std::future::ready(Ok(batch.iter().map(|_| None).collect()))
    }
}

type Reply<R> = oneshot::Sender<Result<<R as Ran>::Answer, Arc<Error>>>;

/// What one statement asks for, and who waits for it.
type Batch<R> = (Vec<<R as Ran>::Ask>, Vec<Reply<R>>);

/// Who asks the same, first come first served.
type Asks<R> = VecDeque<(<R as Ran>::Ask, Reply<R>)>;

pub(super) struct Coalescer<R: Ran> {
    shared: Arc<Shared<R>>,
}

struct Shared<R: Ran> {
    asker: R,
    state: Mutex<State<R>>,
}

struct State<R: Ran> {
    /// By terms that a task serves.
    waiting: HashMap<R::Terms, Asks<R>>,
    /// For the next statement for many.
    gathered: HashMap<R::Terms, Asks<R>>,
    gathering: bool,
}

impl<R: Ran> Coalescer<R> {
    pub(super) fn new(asker: R) -> Self {
        let state = State { waiting: HashMap::new(), gathered: HashMap::new(), gathering: false };
        Self { shared: Arc::new(Shared { asker, state: Mutex::new(state) }) }
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
        let asks = VecDeque::from([(ask, reply)]);
        let mut state = lock(&self.shared.state);
        if state.waiting.contains_key(&terms) || !R::gathers(&terms) {
            self.shared.wait(&mut state, terms, asks);
        } else {
            state.gathered.entry(terms).or_default().extend(asks);
            if !std::mem::replace(&mut state.gathering, true) {
                let shared = Arc::clone(&self.shared);
                tokio::spawn(async move { shared.gather().await });
            }
        }
        answer
    }
}

impl<R: Ran> Shared<R> {
    /// Adds to those who wait for a statement of their own, and has them served.
    fn wait(self: &Arc<Self>, state: &mut State<R>, terms: R::Terms, asks: Asks<R>) {
        match state.waiting.entry(terms) {
            Entry::Occupied(mut waiting) => waiting.get_mut().extend(asks),
            Entry::Vacant(vacant) => {
                let terms = vacant.key().clone();
                vacant.insert(asks);
                let shared = Arc::clone(self);
                tokio::spawn(async move { shared.serve(terms).await });
            }
        }
    }

    /// Asks for what was gathered, one statement after the other, until nothing more was.
    async fn gather(self: &Arc<Self>) {
        let mut unfinished = Unfinished(Some(|| {
            let mut state = lock(&self.state);
            (state.gathering, state.gathered) = (false, HashMap::new());
        }));
        loop {
            // Whoever was woken together with the first asks before the statement goes.
            yield_now().await;
            let mut batch = {
                let mut state = lock(&self.state);
                state.gathered.values_mut().for_each(|asks| asks.retain(|(_, reply)| !reply.is_closed()));
                state.gathered.retain(|_, asks| !asks.is_empty());
                if state.gathered.is_empty() {
                    state.gathering = false;
                    break;
                }
                let some: Vec<R::Terms> = state.gathered.keys().take(TERMS).cloned().collect();
                let batch = some.into_iter().filter_map(|terms| state.gathered.remove_entry(&terms));
                batch.collect::<Vec<_>>()
            };
            if batch.len() >= MANY {
                batch = self.ask_many(batch).await;
            }
            let mut state = lock(&self.state);
            for (terms, asks) in batch {
                self.wait(&mut state, terms, asks);
            }
        }
        unfinished.0 = None;
    }

    /// Returns those that want a statement of their own.
    async fn ask_many(&self, batch: Vec<(R::Terms, Asks<R>)>) -> Vec<(R::Terms, Asks<R>)> {
        let asked: Vec<_> =
            batch.iter().map(|(terms, asks)| (terms, asks.iter().map(|(ask, _)| *ask).collect())).collect();
        let answers = self.asker.run_many(&asked).await;
        drop(asked);
        match answers {
            Ok(answers) => std::iter::zip(batch, answers)
                .filter_map(|((terms, asks), answers)| match answers {
                    Some(answers) => {
                        tell::<R>(asks.into_iter().map(|(_, reply)| reply), Ok(answers));
                        None
                    }
                    None => Some((terms, asks)),
                })
                .collect(),
            Err(error) => {
                tell::<R>(batch.into_iter().flat_map(|(_, asks)| asks).map(|(_, reply)| reply), Err(error));
                Vec::new()
            }
        }
    }

    async fn serve(&self, terms: R::Terms) {
        let mut unfinished = Unfinished(Some(|| drop(lock(&self.state).waiting.remove(&terms))));
        loop {
            yield_now().await;
            let Some((asks, replies)) = self.next(&terms) else { break };
            tell::<R>(replies.into_iter(), self.asker.run(&terms, &asks).await);
        }
        unfinished.0 = None;
    }

    /// Those who still wait; none, and the terms are forgotten, when nobody does.
    fn next(&self, terms: &R::Terms) -> Option<Batch<R>> {
        let mut state = lock(&self.state);
        let queue = state.waiting.get_mut(terms)?;
        queue.retain(|(_, reply)| !reply.is_closed());
        if queue.is_empty() {
            state.waiting.remove(terms);
            return None;
        }
        let size = queue.len().min(BATCH);
        Some(queue.drain(..size).unzip())
    }
}

fn tell<R: Ran>(replies: impl Iterator<Item = Reply<R>>, answers: Result<Vec<R::Answer>, Error>) {
    match answers {
        // An answer whose asker has gone is dropped here, and undoes itself.
        Ok(answers) => std::iter::zip(replies, answers).for_each(|(reply, answer)| {
            let _ = reply.send(Ok(answer));
        }),
        Err(error) => {
            let error = Arc::new(error);
            replies.for_each(|reply| {
                let _ = reply.send(Err(Arc::clone(&error)));
            });
        }
    }
}

/// A statement that panics takes those who wait with it, not those who come later.
struct Unfinished<F: FnMut()>(Option<F>);

impl<F: FnMut()> Drop for Unfinished<F> {
    fn drop(&mut self) {
        if let Some(clean_up) = &mut self.0 {
            clean_up();
        }
    }
}
