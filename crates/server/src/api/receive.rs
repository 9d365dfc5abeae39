//! `receive`: taking messages.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::future::join;
use leasehold_dispatch::receiver::Receiver;
use leasehold_store::{Error as StoreError, Receive, ReceiveMode, ReceivedMessage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    MOST, Shared,
    content::{Name, Wait},
    extract::{Json, Path, check_wait, within},
    messages::MessageJson,
    openapi::NotFound,
    problem::Problem,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(receive)).routes(routes!(receive_deferred))
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// Locked, to be settled before the lock lapses.
    #[default]
    PeekLock,
    /// Gone at once: at most once.
    ReceiveAndDelete,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize, ToSchema)]
#[schema(as = Receive)]
#[serde(deny_unknown_fields)]
struct ReceiveCall {
    /// Messages at most.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 256)]
    max: u32,
    /// How long to wait for the first, up to 20s.
    #[serde(default)]
    wait: Wait,
    #[serde(default)]
    mode: Mode,
    /// Names this call: repeated after a lost answer, it gives the messages of the first answer again, with their
    /// tokens.
    attempt_id: Option<Name>,
}

#[derive(Serialize, ToSchema)]
struct Messages<'a> {
    /// In sequence order.
    messages: Vec<MessageJson<'a>>,
}

fn answer(messages: &[ReceivedMessage]) -> Response {
    axum::Json(Messages { messages: messages.iter().map(MessageJson::of).collect() }).into_response()
}

/// Receive messages
///
/// Waits for the first when told so. When the answer is lost, the locks lapse, and the messages are received again; or
/// repeat the call with the same `attempt_id`.
#[utoipa::path(post, path = "/v1/queues/{queue}/receive", tag = "receive",
    params(("queue" = String, Path, description = "The queue or subscription")), request_body = ReceiveCall,
    responses((status = 200, description = "What there was", body = Messages), NotFound))]
async fn receive(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<ReceiveCall>,
) -> Result<Response, Problem> {
    let call = Receive {
        max: within("max", call.max, 1..=MOST)?,
        wait: check_wait(call.wait)?,
        mode: match call.mode {
            Mode::PeekLock => ReceiveMode::PeekLock,
            Mode::ReceiveAndDelete => ReceiveMode::ReceiveAndDelete,
        },
        attempt_id: call.attempt_id.map(Into::into),
    };
    let messages = if call.wait.is_zero() || shared.stop.is_cancelled() {
        shared.store.receive(&queue, &call).await?
    } else {
        wait_for(&shared, &queue, &call).await?
    };
    Ok(answer(&messages))
}

/// A caller that goes away while it waits drops this future, and what comes then is left to others. What was claimed
/// when it went away is locked until the lock lapses.
async fn wait_for(shared: &Shared, queue: &str, call: &Receive) -> Result<Vec<ReceivedMessage>, StoreError> {
    let waiting = shared.polls.join(shared, queue);
    let mut received = std::pin::pin!(waiting.receiver.receive(call));
    let received = tokio::select! {
        received = &mut received => received,
        // Ends what waits, and lets a claim under way come to its end.
        () = shared.stop.cancelled() => join(received, waiting.receiver.close()).await.0,
    };
    match received {
        Err(StoreError::Closed(_)) => Ok(Vec::new()),
        received => received,
    }
}

/// The long polls under way. Those of one queue share a receiver, and so one subscription to its bells.
#[derive(Clone, Default)]
pub(super) struct Polls(Arc<Mutex<HashMap<String, (Receiver, usize)>>>);

/// One of them.
struct Poll {
    receiver: Receiver,
    polls: Polls,
}

impl Polls {
    fn join(&self, shared: &Shared, queue: &str) -> Poll {
        let mut polls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (receiver, count) = polls.entry(queue.to_owned()).or_insert_with(|| {
            (Receiver::with_listener(&shared.store, queue, Arc::clone(&shared.listener)), 0)
        });
        *count += 1;
        Poll { receiver: receiver.clone(), polls: self.clone() }
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        let mut polls = self.polls.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = polls.get_mut(self.receiver.queue()) {
            *count -= 1;
            if *count == 0 {
                polls.remove(self.receiver.queue());
            }
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Deferred {
    seqs: Vec<i64>,
}

/// Receive deferred messages
///
/// By their sequence numbers; all of them, or none.
#[utoipa::path(post, path = "/v1/queues/{queue}/receive-deferred", tag = "receive",
    params(("queue" = String, Path, description = "The queue or subscription")), request_body = Deferred,
    responses((status = 200, description = "Locked", body = Messages), NotFound))]
async fn receive_deferred(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Deferred>,
) -> Result<Response, Problem> {
    Ok(answer(&shared.store.receive_deferred(&queue, &call.seqs).await?))
}
