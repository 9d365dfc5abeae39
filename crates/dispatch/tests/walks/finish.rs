//! The end of a walk: faults stop, the owners that live finish everything, and leave nothing.

use leasehold_dispatch::Bookkeeping;
use leasehold_store::Stamp;
use tokio::time::Instant;

use crate::{
    call::{PATIENCE, Work},
    check::require,
    step::{How, Step},
    walk::{Hand, Walk},
};

/// Beats and polls until everything is finished: what is handed back, reset, drained and promoted comes in few.
const ROUNDS: usize = 40;

impl Walk<'_> {
    /// Invariant 5.
    pub(crate) async fn finish(&mut self) -> Result<(), String> {
        self.calm().await?;
        for seat in 0..self.owners.len() {
            if self.owners[seat].as_ref().is_some_and(|owner| owner.stopping) {
                self.finish_work(seat).await?;
                self.call(seat, Work::Close).await?;
            }
        }
        if self.owners.iter().all(Option::is_none) {
            self.step(Step::Join { seat: 0, hasty: false }).await?;
        }
        let (mut rounds, started) = (0, Instant::now());
        while !self.before.rows.is_empty() || !self.rested() {
            rounds += 1;
            // What is settled has to wait for whoever has a transaction open on the server, other walks included.
            let late = self.before.rows.is_empty() && started.elapsed() < PATIENCE;
            require!(
                rounds <= ROUNDS || late,
                "{} requests are not finished in {ROUNDS} rounds: {:?}, {:?} (invariant 5)",
                self.before.rows.len(),
                self.before.rows,
                self.before.books
            );
            self.round().await?;
        }
        for (key, outcomes) in &self.before.outcomes {
            require!(outcomes.len() == 1, "{key:?} has {outcomes:?} (invariant 5)");
        }
        let finished = self.before.outcomes.keys().eq(&self.memory.known);
        require!(finished, "{:?} have no result (invariant 5)", self.memory.known);
        self.shut_down().await
    }

    /// Nothing is held any more, and what was on its way arrives. Who died, lapses.
    async fn calm(&mut self) -> Result<(), String> {
        self.step(Step::Unlock).await?;
        while !self.air.is_empty() || !self.late.is_empty() {
            self.step(Step::Release { which: 0 }).await?;
        }
        let living: Vec<String> = self.before.books.keys().cloned().collect();
        self.age_leases_but(&living).await?;
        self.agree().await
    }

    /// Nothing is owed.
    fn rested(&self) -> bool {
        self.before.books.values().all(|book| {
            book.tracked.is_empty()
                && book.orphans.is_empty()
                && !book.reconciling
                && book.unsettled.is_empty()
        })
    }

    /// What one owner does in a while in which nothing fails.
    async fn round(&mut self) -> Result<(), String> {
        self.step(Step::MakeDue).await?;
        for seat in 0..self.owners.len() {
            if self.owners[seat].is_some() {
                self.call(seat, Work::Rebalance).await?;
                self.call(seat, Work::Poll { limit: 100, ended: false }).await?;
                self.finish_work(seat).await?;
            }
        }
        Ok(())
    }

    /// Acks all that the owner works on.
    async fn finish_work(&mut self, seat: usize) -> Result<(), String> {
        let Some(owner) = &self.owners[seat] else { return Ok(()) };
        let stamps: Vec<Stamp> = self.works_on(&owner.name).map(Hand::stamp).cloned().collect();
        let completions = self.complete(stamps, false);
        self.call(seat, Work::Ack(completions)).await
    }

    async fn call(&mut self, seat: usize, work: Work) -> Result<(), String> {
        self.begin_step();
        self.begin(u8::try_from(seat).unwrap_or(0), work, How::Well).await?;
        self.agree().await
    }

    /// Nothing is left of those that end in order.
    async fn shut_down(&mut self) -> Result<(), String> {
        for seat in 0..self.owners.len() {
            let Some(owner) = &self.owners[seat] else { continue };
            let consumer = owner.consumer.clone();
            consumer.stop();
            self.call(seat, Work::Rebalance).await?;
            require!(
                consumer.partitions() == 0,
                "{} partitions are left after a stop",
                consumer.partitions()
            );
            self.call(seat, Work::Close).await?;
            let book = consumer.bookkeeping();
            require!(book == Bookkeeping::default(), "a closed consumer remembers {book:?}");
        }
        let left = self
            .site
            .sql
            .query(
                "SELECT partition_id, owner FROM partitions WHERE queue_id = $1 AND owner IS NOT NULL
                    AND lease_expires_at > now()",
                &[&self.queue],
            )
            .await
            .map_err(|error| error.to_string())?;
        require!(left.is_empty(), "leases are left: {left:?}");
        Ok(())
    }

    /// Nothing of the walk is left on its way, however it ended.
    pub(crate) async fn clear(&mut self) {
        if self.locking {
            self.site.locker.batch_execute("ROLLBACK").await.unwrap();
        }
        for flying in self.air.drain(..) {
            flying.task.abort();
        }
        self.late.clear();
    }
}
