//! A walk: one queue, its owners, what they work on and what is on its way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_dispatch::{Consumer, Polled};
use leasehold_store::{NewRequest, Stamp, partition_of};

use crate::{
    call::{Answer, Call, Flying, Late, Work},
    site::Site,
    step::{Pick, SLOTS, Step, Whose, partition_in_play},
    tally::Tally,
    view::{Key, View},
};

/// A process that lives.
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) stopping: bool,
}

/// A dispatch that a poll returned.
pub(crate) struct Hand {
    pub(crate) owner: String,
    pub(crate) polled: Polled,
    /// Its owner has said how it ended, or given it up.
    pub(crate) settled: bool,
}

impl Hand {
    pub(crate) fn stamp(&self) -> &Stamp {
        &self.polled.request.stamped.stamp
    }
}

/// What a walk remembers of all that it saw.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) known: BTreeSet<Key>,
    /// The calls that may have made each dispatch.
    pub(crate) arrivals: BTreeMap<(Key, i64), BTreeSet<u32>>,
    /// The calls that may have ended each dispatch.
    pub(crate) departures: BTreeMap<(Key, i64), BTreeSet<u32>>,
    /// What calls wrote into requests.
    pub(crate) tags: BTreeSet<(Key, String)>,
}

pub(crate) struct Walk<'a> {
    pub(crate) site: &'a Site,
    pub(crate) queue: i32,
    name: String,
    pub(crate) owners: Vec<Option<Owner>>,
    names: u32,
    calls: u32,
    pub(crate) hands: Vec<Hand>,
    pub(crate) air: Vec<Flying>,
    pub(crate) late: Vec<Late>,
    /// Calls of broken connections, with a statement that waits for a lock in the server.
    pub(crate) ghosts: Vec<Call>,
    /// Somebody else's transaction is open.
    pub(crate) locking: bool,
    pub(crate) memory: Memory,
    pub(crate) before: View,
    /// Of this step: the calls whose statements the server may have run.
    pub(crate) acting: Vec<Call>,
    /// Of this step: the calls that came back.
    pub(crate) answered: Vec<(Call, Answer)>,
    /// In this step something was done to parked requests.
    pub(crate) stirred: bool,
    /// In this step somebody not in play took partitions, and gave them up.
    pub(crate) ousted: bool,
    pub(crate) tally: Tally,
}

impl<'a> Walk<'a> {
    pub(crate) async fn start(site: &'a Site, (queue, name): (i32, String)) -> Self {
        let owners = site.seats.iter().map(|_| None).collect();
        let before = site.looks.look(&site.sql, queue).await;
        Self {
            site,
            queue,
            name,
            owners,
            names: 0,
            calls: 0,
            hands: Vec::new(),
            air: Vec::new(),
            late: Vec::new(),
            ghosts: Vec::new(),
            locking: false,
            memory: Memory::default(),
            before,
            acting: Vec::new(),
            answered: Vec::new(),
            stirred: false,
            ousted: false,
            tally: Tally { walks: 1, ..Tally::default() },
        }
    }

    /// Takes a step and looks at everything after it. False when there was nothing to do.
    pub(crate) async fn step(&mut self, step: Step) -> Result<bool, String> {
        self.begin_step();
        let took_effect = self.take(step).await?;
        self.tally.step(step, took_effect);
        if took_effect {
            self.agree().await?;
        }
        Ok(took_effect)
    }

    pub(crate) fn begin_step(&mut self) {
        (self.acting, self.answered) = (Vec::new(), Vec::new());
        (self.stirred, self.ousted) = (false, false);
    }

    /// False when there was nothing to do.
    async fn take(&mut self, step: Step) -> Result<bool, String> {
        match step {
            Step::Enqueue { slot, conflict, parked } => self.enqueue(slot, conflict, parked).await,
            Step::Cancel { slot } => self.cancel(slot).await,
            Step::Join { seat, hasty } => Ok(self.join(seat, hasty)),
            Step::Poll { seat, limit, ended, how } => {
                self.begin(seat, Work::Poll { limit: limit.into(), ended }, how).await
            }
            Step::Ack { seat, pick, failed, how } => {
                let work = Work::Ack(self.completions(seat, pick, failed));
                self.begin(seat, work, how).await
            }
            Step::Retry { seat, pick, delayed, how } => {
                let work = Work::Retry(self.retries(seat, pick, delayed));
                self.begin(seat, work, how).await
            }
            Step::Defer { seat, pick, delayed, how } => {
                let work = Work::Defer(self.deferrals(seat, pick, delayed));
                self.begin(seat, work, how).await
            }
            Step::HandBack { seat, pick, refund, how } => {
                let work = Work::HandBack { stamps: self.pick(seat, pick), refund };
                self.begin(seat, work, how).await
            }
            Step::Abandon { seat, pick } => Ok(self.abandon(seat, pick)),
            Step::Rebalance { seat, how } => self.begin(seat, Work::Rebalance, how).await,
            Step::Stop { seat } => Ok(self.stop(seat)),
            Step::Close { seat, how } => self.begin(seat, Work::Close, how).await,
            Step::Crash { seat, cut } => self.crash(seat, cut).await,
            Step::Sever { seat } => self.sever(seat).await,
            Step::Lapse { seat } => self.lapse(seat).await,
            Step::Forget => self.forget().await,
            Step::Oust { seat, partition } => self.oust(seat, partition).await,
            Step::MakeDue => self.make_due().await,
            Step::PassDeadline { slot } => self.pass_deadline(slot).await,
            Step::LockRequest { slot } => self.lock_request(slot).await,
            Step::LockPartition { partition } => self.lock_partition(partition).await,
            Step::Unlock => self.unlock().await,
            Step::Release { which } => self.release(which).await,
            Step::GiveUp { which } => self.give_up(which).await,
        }
    }

    pub(crate) fn owner(&self, seat: u8) -> Option<&Owner> {
        self.owners[usize::from(seat)].as_ref()
    }

    pub(crate) fn next_call(&mut self) -> u32 {
        self.calls += 1;
        self.calls
    }

    /// The number that the next call will have.
    pub(crate) fn coming_call(&self) -> u32 {
        self.calls + 1
    }

    fn join(&mut self, seat: u8, hasty: bool) -> bool {
        let seat = usize::from(seat);
        if self.owners[seat].is_some() {
            return false;
        }
        self.names += 1;
        let name = format!("owner{}", self.names);
        let consumer = Arc::new(self.site.seats[seat].consumer(self.queue, &name, hasty));
        self.owners[seat] = Some(Owner { name, consumer, stopping: false });
        true
    }

    fn stop(&mut self, seat: u8) -> bool {
        let Some(owner) = &mut self.owners[usize::from(seat)] else { return false };
        owner.consumer.stop();
        owner.stopping = true;
        true
    }

    fn abandon(&mut self, seat: u8, pick: Pick) -> bool {
        let stamps = self.pick(seat, pick);
        let Some(owner) = self.owner(seat).filter(|_| !stamps.is_empty()) else { return false };
        owner.consumer.abandon(&stamps);
        let name = owner.name.clone();
        self.note_settled(&name, &stamps.iter().collect::<Vec<_>>());
        true
    }

    /// Its owner does not work on them any more.
    pub(crate) fn note_settled(&mut self, owner: &str, stamps: &[&Stamp]) {
        for hand in self.hands.iter_mut().filter(|hand| hand.owner == owner) {
            if stamps.contains(&hand.stamp()) {
                hand.settled = true;
            }
        }
    }

    /// What the owner works on.
    pub(crate) fn works_on(&self, owner: &str) -> impl Iterator<Item = &Hand> {
        self.hands
            .iter()
            .filter(move |hand| hand.owner == owner && !hand.settled && !hand.polled.lost.is_cancelled())
    }

    /// Dispatches to settle; no one twice.
    pub(crate) fn pick(&self, seat: u8, pick: Pick) -> Vec<Stamp> {
        let Some(owner) = self.owner(seat) else { return Vec::new() };
        let hands: Vec<&Hand> = match pick.whose {
            Whose::Own => self.works_on(&owner.name).collect(),
            Whose::Any => self.hands.iter().collect(),
        };
        let count = usize::from(pick.count).min(hands.len());
        let latest_first = (0..count).map(|n| (usize::from(pick.from) + n) % hands.len());
        latest_first.map(|n| hands[hands.len() - 1 - n].stamp().clone()).collect()
    }

    /// The id and token of a slot's request.
    pub(crate) fn key_of(&self, slot: u8) -> Key {
        let half = SLOTS / 2;
        let partition = partition_in_play(slot % half);
        let ids = (0..).map(|n| format!("{}-{}-{n}", self.name, slot % half));
        let id = ids.into_iter().find(|id| partition_of(id) == partition).unwrap();
        (id, format!("t{}", slot / half))
    }

    async fn enqueue(&mut self, slot: u8, conflict: bool, parked: bool) -> Result<bool, String> {
        let key = self.key_of(slot);
        let known = self.memory.known.contains(&key);
        if known && self.locking {
            return Ok(false);
        }
        let payload = if known && conflict { "other" } else { "payload" };
        let not_before = "2100-01-01T00:00:00Z".parse().unwrap();
        let request = NewRequest {
            id: Some(key.0.clone()),
            token: Some(key.1.clone()),
            // Nothing of it tells a repeat from the first.
            not_before: (parked && !known).then_some(not_before),
            ..NewRequest::new(&self.name, payload)
        };
        let answer = self.site.store.enqueue(&[request]).await;
        match (known, conflict, answer) {
            (false, _, Ok(_)) => {
                self.memory.known.insert(key);
                self.tally.count("requests", 1);
            }
            (true, true, Err(leasehold_store::Error::Conflict(_))) => self.tally.count("conflicts", 1),
            (true, false, Ok(_)) => self.tally.count("repeats", 1),
            // One that was parked differs from a repeat that is not.
            (true, false, Err(leasehold_store::Error::Conflict(_))) => self.tally.count("conflicts", 1),
            (_, _, answer) => return Err(format!("a submission known: {known} is answered by {answer:?}")),
        }
        Ok(true)
    }

    /// Everything that came back is taken note of, once it can be compared with what is there.
    pub(crate) fn note_answers(&mut self) {
        for (call, answer) in std::mem::take(&mut self.answered) {
            match answer {
                Answer::Polled(Ok(polled)) => {
                    self.tally.count("dispatches", polled.len());
                    let owner = &call.owner;
                    let hands = polled.into_iter();
                    let hands = hands.map(|polled| Hand { owner: owner.clone(), polled, settled: false });
                    self.hands.extend(hands);
                }
                Answer::Acked(Ok(_)) | Answer::Matched(Ok(_)) => {
                    self.note_settled(&call.owner, &call.stamps());
                }
                Answer::Beat(Ok(beat)) => {
                    self.tally.count("redeliveries", usize::try_from(beat.redelivered).unwrap_or(0));
                }
                Answer::Closed(Ok(())) => {}
                Answer::Polled(Err(_))
                | Answer::Acked(Err(_))
                | Answer::Matched(Err(_))
                | Answer::Beat(Err(_))
                | Answer::Closed(Err(_)) => self.tally.count("errors", 1),
            }
        }
    }
}
