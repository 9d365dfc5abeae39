//! A call of a consumer: what it is to do, how it is brought on its way, and where it stands.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use leasehold_dispatch::{Beat, Consumer, Polled};
use leasehold_store::{Completion, Deferral, Error, Retry, Stamp};
use leasehold_testkit::proxy::{FaultProxy, HeldReply, HeldRequest};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    site::Site,
    step::How,
    view::{Key, Share},
};

/// Nothing takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) enum Work {
    Poll { limit: u32, ended: bool },
    Ack(Vec<Completion>),
    Retry(Vec<Retry>),
    Defer(Vec<Deferral>),
    HandBack { stamps: Vec<Stamp>, refund: bool },
    Rebalance,
    Close,
}

/// How it came back.
#[derive(Debug)]
pub(crate) enum Answer {
    Polled(Result<Vec<Polled>, Error>),
    Acked(Result<Vec<bool>, Error>),
    Matched(Result<Vec<Stamp>, Error>),
    Beat(Result<Beat, Error>),
    Closed(Result<(), Error>),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) seat: usize,
    pub(crate) owner: String,
    pub(crate) work: Arc<Work>,
    /// Who held what when its statement began.
    pub(crate) shares: BTreeMap<i16, Share>,
    /// What its owner had to hand back when it began.
    pub(crate) orphans: Vec<Stamp>,
    /// Its caller is gone.
    pub(crate) late: bool,
}

/// What a call writes of a dispatch where it writes something.
pub(crate) fn tag(number: u32, attempt: i64) -> String {
    format!("call {number} of dispatch {attempt}")
}

pub(crate) fn key(stamp: &Stamp) -> Key {
    (stamp.id.clone(), stamp.token.clone())
}

impl Call {
    pub(crate) fn stamps(&self) -> Vec<&Stamp> {
        match &*self.work {
            Work::Ack(completions) => completions.iter().map(|c| &c.stamp).collect(),
            Work::Retry(retries) => retries.iter().map(|r| &r.stamp).collect(),
            Work::Defer(deferrals) => deferrals.iter().map(|d| &d.stamp).collect(),
            Work::HandBack { stamps, .. } => stamps.iter().collect(),
            Work::Poll { .. } | Work::Rebalance | Work::Close => Vec::new(),
        }
    }

    pub(crate) fn settles(&self, of: &Key, attempt: i64) -> bool {
        self.stamps().iter().any(|stamp| stamp.attempt == attempt && key(stamp) == *of)
    }

    pub(crate) fn polls(&self) -> bool {
        matches!(*self.work, Work::Poll { .. })
    }

    pub(crate) fn beats(&self) -> bool {
        matches!(*self.work, Work::Rebalance)
    }

    /// Whether it holds the consumer's cycle.
    pub(crate) fn cycles(&self) -> bool {
        matches!(*self.work, Work::Poll { .. } | Work::Rebalance | Work::Close)
    }
}

async fn run(consumer: Arc<Consumer>, work: Arc<Work>) -> Answer {
    match &*work {
        Work::Poll { limit, ended: false } => Answer::Polled(consumer.poll(*limit).await),
        Work::Poll { limit, ended: true } => Answer::Polled(consumer.poll_ended(*limit).await),
        Work::Ack(completions) => Answer::Acked(consumer.ack(completions).await),
        Work::Retry(retries) => Answer::Matched(consumer.retry(retries).await),
        Work::Defer(deferrals) => Answer::Matched(consumer.defer(deferrals).await),
        Work::HandBack { stamps, refund } => Answer::Matched(consumer.undispatch(stamps, *refund).await),
        Work::Rebalance => Answer::Beat(consumer.rebalance().await),
        Work::Close => Answer::Closed(consumer.close().await),
    }
}

#[derive(Debug)]
pub(crate) enum Hold {
    Request(HeldRequest),
    Reply(HeldReply),
}

impl Hold {
    async fn reached(&self) {
        match self {
            Self::Request(held) => held.reached().await,
            Self::Reply(held) => held.reached().await,
        }
    }
}

/// A call on its way.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) call: Call,
    pub(crate) task: JoinHandle<Answer>,
    /// Where the proxy has it, or may get it.
    pub(crate) hold: Option<Hold>,
    /// A statement of it waits for somebody else's lock.
    pub(crate) waits: bool,
}

/// A request whose caller is gone, at the proxy or waiting for a lock in the server.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) call: Call,
    pub(crate) held: HeldRequest,
    pub(crate) waits: bool,
}

/// Where something on its way has come to rest.
#[derive(Debug)]
pub(crate) enum Rest<T> {
    Over(T),
    Held,
    Waits,
}

/// Whether a fault that was asked for came to pass.
pub(crate) struct Begun {
    pub(crate) rest: Rest<Answer>,
    pub(crate) flying: Flying,
    pub(crate) faulted: bool,
}

/// Waits until a session of the seat other than these waits for a lock; for ever where nobody holds any.
async fn waiting(site: &Site, seat: usize, others: Option<&[i32]>) {
    let Some(others) = others else { return pending().await };
    while site.waiting(seat).await.iter().all(|session| others.contains(session)) {
        sleep(Duration::from_millis(1)).await;
    }
}

impl Flying {
    /// `waiting_others`: the other sessions of the seat that wait for locks; none: nobody holds any.
    pub(crate) async fn rest(
        &mut self,
        site: &Site,
        waiting_others: Option<&[i32]>,
    ) -> Result<Rest<Answer>, String> {
        let (task, hold, seat) = (&mut self.task, &self.hold, self.call.seat);
        let reached = async {
            match hold {
                Some(hold) => hold.reached().await,
                None => pending().await,
            }
        };
        let rest = async {
            tokio::select! {
                biased;
                answer = task => answer.map(Rest::Over).map_err(|error| format!("a call panicked: {error}")),
                () = reached => Ok(Rest::Held),
                () = waiting(site, seat, waiting_others) => Ok(Rest::Waits),
            }
        };
        let rest = timeout(PATIENCE, rest).await;
        let Ok(rest) = rest else {
            return Err(format!("{:?} is stuck:\n{}", self.call, site.activity().await));
        };
        let rest = rest?;
        match rest {
            Rest::Held => {}
            Rest::Over(_) | Rest::Waits => self.hold = None,
        }
        self.waits = matches!(rest, Rest::Waits);
        Ok(rest)
    }
}

impl Late {
    pub(crate) async fn rest(
        &mut self,
        site: &Site,
        waiting_others: Option<&[i32]>,
    ) -> Result<Rest<()>, String> {
        self.held.release();
        let rest = async {
            tokio::select! {
                biased;
                () = self.held.over() => Rest::Over(()),
                () = waiting(site, self.call.seat, waiting_others) => Rest::Waits,
            }
        };
        let rest = timeout(PATIENCE, rest).await;
        let Ok(rest) = rest else {
            return Err(format!("{:?} is stuck:\n{}", self.call, site.activity().await));
        };
        self.waits = matches!(rest, Rest::Waits);
        Ok(rest)
    }
}

/// Brings a call on its way, with what is to happen to it, and waits until it is over or in the air.
pub(crate) async fn begin(
    site: &Site,
    consumer: Arc<Consumer>,
    call: Call,
    how: How,
    waiting_others: Option<&[i32]>,
) -> Result<Begun, String> {
    let proxy: &FaultProxy = &site.seats[call.seat].proxy;
    let (mut fault, mut hold) = (None, None);
    match how {
        How::Well => {}
        How::LoseReply(kind) => fault = Some(proxy.lose_reply_matching(kind.marker())),
        How::FailBefore(kind) => fault = Some(proxy.fail_before_matching(kind.marker())),
        How::HoldRequest(kind) => hold = Some(Hold::Request(proxy.hold_request_matching(kind.marker()))),
        How::HoldReply(kind) => hold = Some(Hold::Reply(proxy.hold_reply_matching(kind.marker()))),
    }
    let task = tokio::spawn(run(consumer, call.work.clone()));
    let mut flying = Flying { call, task, hold, waits: false };
    let rest = flying.rest(site, waiting_others).await?;
    let mut faulted = matches!(rest, Rest::Held);
    if let Some(fault) = fault {
        faulted = fault.happened();
        fault.call_off();
    }
    Ok(Begun { rest, flying, faulted })
}
