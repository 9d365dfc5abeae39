//! Those who take things out: receivers of messages, in this process and in their own, and a poller of results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::time::sleep;
use tokio_postgres::{Client, Error, NoTls};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    member::Member,
    process::{Printed, leasehold},
    producers::Ledger,
    results::{COLUMNS, Finished},
    world::{MAIL, POLLED},
};

/// `leasehold receive`, killed and started again: what it prints is handled.
pub(crate) struct Receiver {
    member: Member,
    printed: Vec<Printed>,
}

impl Receiver {
    pub(crate) fn start(url: &str) -> Self {
        let url = url.to_owned();
        let member = Member::start(move || {
            let mut command = leasehold(&["receive", MAIL, "--follow"]);
            command.env("DATABASE_URL", &url);
            command
        });
        let printed = vec![member.running.stdout.clone()];
        Self { member, printed }
    }

    /// Kills it, should it still run, and starts another.
    pub(crate) async fn kill(&mut self) {
        if !self.member.running.has_ended() {
            self.member.running.kill().await;
        }
        self.start_again();
    }

    /// So that one which an unreachable database ended is there again.
    pub(crate) fn keep_up(&mut self) {
        if self.member.running.has_ended() {
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        self.member.start_again();
        self.printed.push(self.member.running.stdout.clone());
    }

    /// Ends it in order, and says which messages it has handled in all its lives.
    pub(crate) async fn finish(mut self) -> BTreeSet<String> {
        self.member.running.signal("TERM").await;
        self.member.running.ended_with(0).await;
        let lines = self.printed.iter().flat_map(Printed::lines);
        // A killed process's last line may have no end.
        let messages = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        messages.filter_map(|message| Some(message["message_id"].as_str()?.to_owned())).collect()
    }
}

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Receives by SQL over whatever connection holds; says what it has handled.
pub(crate) async fn receive(url: String, ledger: Arc<Ledger>, stop: CancellationToken) -> BTreeSet<String> {
    let mut handled = BTreeSet::new();
    while !stop.is_cancelled() {
        // An error is the end of a connection, and of what was locked over it.
        if let Err(error) = receive_over_one(&url, &mut handled, &stop).await {
            ledger.errors.note_of_receiver(&error);
        }
        sleep(Duration::from_millis(50)).await;
    }
    handled
}

async fn receive_over_one(
    url: &str,
    handled: &mut BTreeSet<String>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let client = connect(url).await?;
    while !stop.is_cancelled() {
        let receive = "SELECT seq, message_id, lock_token FROM leasehold.receive($1, 4)";
        let rows = client.query(receive, &[&MAIL]).await?;
        if rows.is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
        for (n, row) in rows.iter().enumerate() {
            let (seq, id, token): (i64, String, String) = (row.get(0), row.get(1), row.get(2));
            handled.insert(id);
            sleep(Duration::from_millis(10)).await;
            let settle = if n == 3 {
                "SELECT leasehold.abandon($1, $2, $3)"
            } else {
                "SELECT leasehold.complete($1, $2, $3, 'done'::bytea)"
            };
            client.execute(settle, &[&MAIL, &seq, &token]).await?;
        }
    }
    Ok(())
}

/// Leases and acks the results of one route until it is stopped; what it has seen, by sequence number.
pub(crate) async fn poll(
    url: String,
    clock: Clock,
    seen: Arc<Mutex<BTreeMap<i64, Finished>>>,
    ledger: Arc<Ledger>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        if let Err(error) = poll_over_one(&url, clock, &seen, &stop).await {
            ledger.errors.note(&error);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn poll_over_one(
    url: &str,
    clock: Clock,
    seen: &Mutex<BTreeMap<i64, Finished>>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let client = connect(url).await?;
    let lease =
        format!("SELECT {COLUMNS}, lease::text FROM leasehold.lease_results($1, 50, '2 seconds') AS r");
    while !stop.is_cancelled() {
        let rows = client.query(&lease, &[&POLLED]).await?;
        let seqs: Vec<i64> = rows.iter().map(|row| row.get("seq")).collect();
        for row in &rows {
            let finished = Finished::read(row, clock);
            let known = seen.lock().unwrap().insert(finished.seq, finished.clone());
            assert!(known.is_none_or(|known| known == finished), "a result is the same whenever it is seen");
        }
        match rows.first().map(|row| row.get::<_, String>("lease")) {
            Some(lease) => {
                let ack = "SELECT leasehold.ack_results($1, $2::text::uuid, $3)";
                client.execute(ack, &[&POLLED, &lease, &seqs]).await?;
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    Ok(())
}
