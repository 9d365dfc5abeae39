//! Those who handle messages: receivers, in this process or in one of their own, and the backend of the dispatchers.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use leasehold_dispatch::receiver::{Failure, Receiver, WorkerOptions};
use leasehold_store::{ReceivedMessage, Reply, Store, StoreOptions};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{net::TcpListener, process::Command, time::sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    LOCK_TIME, QUEUE,
    ledger::{Entries, Scribe, What},
};

/// Has the orders of a receiver's process: database, ledger, seed.
const ORDERS: &str = "GROUPS_RECEIVER";

/// Longer than a call, so that receivers leave something to dispatchers.
const LONGEST_HANDLING: Duration = Duration::from_millis(250);
const LONGEST_CALL: Duration = Duration::from_millis(50);

type Dice = Arc<Mutex<StdRng>>;

fn dice(seed: u64) -> Dice {
    Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))
}

/// How a handling goes.
enum Mood {
    Well,
    /// It takes longer than a lock holds, so that it must be renewed.
    Slowly,
    Badly {
        again_after: Duration,
    },
}

fn draw(dice: &Dice, longest: Duration) -> (Duration, Mood) {
    let mut dice = dice.lock().unwrap();
    let mood = match dice.random_range(0..200) {
        0 | 1 => Mood::Slowly,
        2..10 => Mood::Badly { again_after: Duration::ZERO },
        10..18 => Mood::Badly { again_after: Duration::from_millis(dice.random_range(10..300)) },
        _ => Mood::Well,
    };
    (longest.mul_f64(dice.random()), mood)
}

/// Receives until it is stopped. The ledger is closed when the test is over: then it ends with an error.
pub(crate) async fn receive(url: &str, scribe: Scribe, seed: u64, stop: CancellationToken) {
    let store = Store::open(url, &StoreOptions { pool_size: 4, ..StoreOptions::default() }).unwrap();
    let dice = dice(seed);
    let handler = move |message: ReceivedMessage| {
        let dice = Arc::clone(&dice);
        async move { handle(&message, scribe, &dice).await }
    };
    let options = WorkerOptions { concurrency: 1, ..WorkerOptions::default() };
    Receiver::new(&store, QUEUE).run(handler, options, stop).await.unwrap();
    store.close().await;
}

async fn handle(message: &ReceivedMessage, scribe: Scribe, dice: &Dice) -> Result<Reply, Failure> {
    let token = message.lock_token.as_deref().unwrap();
    let note = async |what| {
        if scribe.note(what, &message.message_id, token).await.is_err() {
            std::process::exit(1);
        }
    };
    note(What::Begin).await;
    let (time, mood) = draw(dice, LONGEST_HANDLING);
    sleep(time).await;
    match mood {
        Mood::Well => {}
        Mood::Slowly => sleep(LOCK_TIME * 2).await,
        Mood::Badly { again_after } => return Err(Failure::retry_after(again_after, "as a test wants")),
    }
    note(What::Done).await;
    Ok(Reply::default())
}

/// A receiver that is a process of its own: this very program, told to run [`receiver_process`] only.
pub(crate) fn receiver_command(url: &str, ledger: SocketAddr, seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("{}::receiver_process", module_path!().split_once("::").unwrap().1);
    command.args([&test, "--exact", "--ignored", "--nocapture"]);
    command.env(ORDERS, format!("{url} {ledger} {seed}")).kill_on_drop(true);
    command
}

/// What [`receiver_command`] starts. It ends by a signal only, or when the ledger has gone.
#[tokio::test]
#[ignore = "it is a process of another test"]
async fn receiver_process() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let [url, ledger, seed] = orders.split(' ').collect::<Vec<_>>()[..] else { panic!("{orders:?}") };
    let scribe = Scribe(ledger.parse().unwrap());
    receive(url, scribe, seed.parse().unwrap(), CancellationToken::new()).await;
}

/// Answers the calls of dispatchers until it is dropped.
pub(crate) struct Backend {
    pub(crate) url: String,
    _server: AbortOnDropHandle<()>,
}

impl Backend {
    pub(crate) async fn start(entries: Entries, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/handle", listener.local_addr().unwrap());
        let router = Router::new().route("/handle", post(answer)).with_state((entries, dice(seed)));
        let server = async move { axum::serve(listener, router).await.unwrap() };
        Self { url, _server: AbortOnDropHandle::new(tokio::spawn(server)) }
    }
}

/// The body of a message is its id. Whoever calls may be gone before the answer: then it is none.
async fn answer(State((entries, dice)): State<(Entries, Dice)>, message_id: String) -> StatusCode {
    entries.push(What::Begin, &message_id, None);
    let (time, mood) = draw(&dice, LONGEST_CALL);
    sleep(time).await;
    match mood {
        Mood::Well => {}
        Mood::Slowly => sleep(LOCK_TIME * 2).await,
        Mood::Badly { .. } => return StatusCode::SERVICE_UNAVAILABLE,
    }
    entries.push(What::Done, &message_id, None);
    StatusCode::OK
}
