//! How calls are brought on their way, held up, let go and given up, and how owners die.

use std::time::Duration;

use leasehold_store::{Completion, Deferral, Envelope, Retry, Stamp};

use crate::{
    call::{self, Answer, Call, Flying, Hold, Late, Rest, Work, tag},
    step::{How, Pick},
    walk::Walk,
};

/// Calls of one owner in the air at once: fewer than it has connections.
const CROWD: usize = 6;
const LATER: Duration = Duration::from_secs(3600);

fn delay(delayed: bool) -> Duration {
    if delayed { LATER } else { Duration::ZERO }
}

impl Walk<'_> {
    pub(super) fn completions(&self, seat: u8, pick: Pick, failed: bool) -> Vec<Completion> {
        self.complete(self.pick(seat, pick), failed)
    }

    /// By the next call.
    pub(crate) fn complete(&self, stamps: Vec<Stamp>, failed: bool) -> Vec<Completion> {
        let number = self.coming_call();
        let code = if number.is_multiple_of(3) { "CANCELLED" } else { "BACKEND_ERROR" };
        let complete = |stamp: Stamp| Completion {
            body: Some(tag(number, stamp.attempt).into()),
            stamp,
            status: Some(if failed { 500 } else { 200 }),
            code: failed.then(|| code.into()),
            message: None,
            content_type: None,
        };
        stamps.into_iter().map(complete).collect()
    }

    pub(super) fn retries(&self, seat: u8, pick: Pick, delayed: bool) -> Vec<Retry> {
        let number = self.coming_call();
        let retry = |stamp: Stamp| {
            let metadata = Some(serde_json::json!({ "tag": tag(number, stamp.attempt) }));
            Retry { stamp, delay: delay(delayed), envelope: Envelope { headers: None, metadata } }
        };
        self.pick(seat, pick).into_iter().map(retry).collect()
    }

    pub(super) fn deferrals(&self, seat: u8, pick: Pick, delayed: bool) -> Vec<Deferral> {
        self.pick(seat, pick).into_iter().map(|stamp| Deferral { stamp, delay: delay(delayed) }).collect()
    }

    /// Who waits for locks among a seat's sessions; none: nobody can hold any.
    async fn waiting(&self, seat: usize) -> Option<Vec<i32>> {
        if self.locking { Some(self.site.waiting(seat).await) } else { None }
    }

    fn busy(&self, owner: &str) -> bool {
        self.air.iter().any(|f| f.call.cycles() && f.call.owner == owner)
    }

    /// A call of the owner in the seat. False when there is none, or it has nothing to do, or too much.
    pub(super) async fn begin(&mut self, seat: u8, work: Work, how: How) -> Result<bool, String> {
        let Some(owner) = self.owner(seat) else { return Ok(false) };
        let (name, consumer) = (owner.name.clone(), owner.consumer.clone());
        let seat = usize::from(seat);
        let crowded = self.air.iter().filter(|f| f.call.seat == seat).count() >= CROWD;
        let shares = self.before.shares.clone();
        let orphans = self.before.books.get(&name).map(|book| book.orphans.clone()).unwrap_or_default();
        let mut call = Call { number: 0, seat, owner: name, work: work.into(), shares, orphans, late: false };
        // It would not ask the server.
        let pointless = call.polls() && consumer.partitions() == 0;
        let closes = matches!(*call.work, Work::Close);
        if crowded
            || pointless
            || call.cycles() && self.busy(&call.owner)
            || !call.cycles() && call.stamps().is_empty()
        {
            return Ok(false);
        }
        call.number = self.next_call();
        if closes {
            // Its process has nothing more to do.
            self.owners[seat] = None;
            self.tally.count("closes", 1);
        }
        self.acting.push(call.clone());
        let waiting = self.waiting(seat).await;
        let begun = call::begin(self.site, consumer, call, how, waiting.as_deref()).await?;
        if begun.faulted {
            self.tally.fault(how);
        }
        self.note_rest(begun.rest, begun.flying);
        Ok(true)
    }

    fn note_rest(&mut self, rest: Rest<Answer>, flying: Flying) {
        match rest {
            Rest::Over(answer) => self.answered.push((flying.call, answer)),
            Rest::Held => self.air.push(flying),
            Rest::Waits => {
                self.tally.count("waits for a lock", 1);
                self.air.push(flying);
            }
        }
    }

    /// Lets one that is held go on.
    pub(super) async fn release(&mut self, which: u8) -> Result<bool, String> {
        let held = |f: &&Flying| !f.waits;
        let flying = self.air.iter().filter(held).count();
        let late = self.late.iter().filter(|l| !l.waits).count();
        if flying + late == 0 {
            return Ok(false);
        }
        let which = usize::from(which) % (flying + late);
        if which < flying {
            let at = (0..self.air.len()).filter(|at| !self.air[*at].waits).nth(which).unwrap();
            let flying = self.air.remove(at);
            self.go_on(flying).await?;
            self.tally.count("split", 1);
        } else {
            let at = (0..self.late.len()).filter(|at| !self.late[*at].waits).nth(which - flying).unwrap();
            let late = self.late.remove(at);
            self.arrive(late).await?;
        }
        Ok(true)
    }

    /// Held or waiting until now.
    async fn go_on(&mut self, mut flying: Flying) -> Result<(), String> {
        // Before it is let go, so that it is not taken for one of the others.
        let waiting = self.waiting(flying.call.seat).await;
        flying.hold = None;
        if !flying.waits {
            flying.call.shares = self.before.shares.clone();
        }
        self.acting.push(flying.call.clone());
        let rest = flying.rest(self.site, waiting.as_deref()).await?;
        self.note_rest(rest, flying);
        Ok(())
    }

    async fn arrive(&mut self, mut late: Late) -> Result<(), String> {
        if !late.waits {
            late.call.shares = self.before.shares.clone();
            self.tally.count("late statements", 1);
        }
        self.acting.push(late.call.clone());
        let waiting = self.waiting(late.call.seat).await;
        if let Rest::Waits = late.rest(self.site, waiting.as_deref()).await? {
            self.late.push(late);
        }
        Ok(())
    }

    /// Stops waiting for one that is held.
    pub(super) async fn give_up(&mut self, which: u8) -> Result<bool, String> {
        let held: Vec<usize> = (0..self.air.len()).filter(|at| !self.air[*at].waits).collect();
        if held.is_empty() {
            return Ok(false);
        }
        let flying = self.air.remove(held[usize::from(which) % held.len()]);
        self.drop_future(flying).await;
        self.tally.count("given up", 1);
        Ok(true)
    }

    async fn drop_future(&mut self, mut flying: Flying) {
        flying.task.abort();
        match (&mut flying.task).await {
            Ok(answer) => self.answered.push((flying.call, answer)),
            Err(_) => {
                if let Some(Hold::Request(held)) = flying.hold {
                    let call = Call { late: true, ..flying.call };
                    self.late.push(Late { call, held, waits: false });
                }
            }
        }
    }

    /// Not while a statement waits for a lock, which would outlive its client only until it is cancelled.
    pub(super) async fn crash(&mut self, seat: u8, cut: bool) -> Result<bool, String> {
        let at = usize::from(seat);
        let waits = self.waiting(at).await.is_some_and(|waiting| !waiting.is_empty());
        let Some(owner) = self.owner(seat).filter(|_| !waits).map(|owner| owner.name.clone()) else {
            return Ok(false);
        };
        self.owners[at] = None;
        for flying in std::mem::take(&mut self.air) {
            if flying.call.owner == owner {
                self.drop_future(flying).await;
            } else {
                self.air.push(flying);
            }
        }
        if cut {
            for flying in std::mem::take(&mut self.air) {
                // A predecessor's, which shares the connections.
                if flying.call.seat == at { self.drop_future(flying).await } else { self.air.push(flying) }
            }
            self.cut(at).await;
        }
        self.tally.count("crashes", 1);
        Ok(true)
    }

    /// Nothing arrives any more that the seat has sent.
    async fn cut(&mut self, at: usize) {
        self.site.seats[at].proxy.cut();
        let (cut, late) = std::mem::take(&mut self.late).into_iter().partition(|l| l.call.seat == at);
        self.late = late;
        for late in Vec::<Late>::into_iter(cut) {
            // Dropping it would let go what is not cut yet.
            late.held.over().await;
        }
    }

    /// Its calls fail, and the consumer goes on. What waits for a lock in the server does so without it.
    pub(super) async fn sever(&mut self, seat: u8) -> Result<bool, String> {
        let at = usize::from(seat);
        let (severed, air): (Vec<Flying>, _) =
            std::mem::take(&mut self.air).into_iter().partition(|f| f.call.seat == at);
        self.air = air;
        if severed.is_empty() {
            return Ok(false);
        }
        self.ghosts.extend(self.late.extract_if(.., |l| l.waits && l.call.seat == at).map(|late| late.call));
        self.cut(at).await;
        for mut flying in severed {
            if flying.waits {
                self.ghosts.push(Call { late: true, ..flying.call.clone() });
            }
            let hold = flying.hold.take();
            let Rest::Over(answer) = flying.rest(self.site, None).await? else {
                return Err("a severed call goes on".into());
            };
            drop(hold);
            self.answered.push((flying.call, answer));
        }
        self.tally.count("severed", 1);
        Ok(true)
    }

    /// The other transaction ends, and all that waited for it goes on to its end.
    pub(super) async fn unlock(&mut self) -> Result<bool, String> {
        if !self.locking {
            return Ok(false);
        }
        self.locking = false;
        self.site.locker.batch_execute("COMMIT").await.map_err(|error| error.to_string())?;
        let (waiting, air) = std::mem::take(&mut self.air).into_iter().partition(|f| f.waits);
        self.air = air;
        let (waiting_late, late) = std::mem::take(&mut self.late).into_iter().partition(|l| l.waits);
        self.late = late;
        for flying in Vec::<Flying>::into_iter(waiting) {
            self.go_on(flying).await?;
        }
        for late in Vec::<Late>::into_iter(waiting_late) {
            self.arrive(late).await?;
        }
        for ghost in std::mem::take(&mut self.ghosts) {
            self.site.until_idle(ghost.seat).await?;
            self.tally.count("late statements", 1);
            self.acting.push(ghost);
        }
        Ok(true)
    }
}
