//! Asking for slots: of one key, or of many in one statement.

use std::{collections::HashSet, sync::Arc};

use leasehold_store::{Error, Quota, SlotExchange, Store};

use super::{
    Grant, Limit, Releases,
    coalesce::Ran,
    holder::{Busy, Holder, Holders},
};

pub(super) struct Slots {
    pub(super) store: Store,
    pub(super) holders: Holders,
    pub(super) releases: Arc<Releases>,
}

/// An answer for each who asked.
type Answers = Vec<Option<Grant>>;

impl Ran for Slots {
    type Terms = Limit;
    type Ask = ();
    type Answer = Option<Grant>;

    async fn run(&self, limit: &Limit, asks: &[()]) -> Result<Answers, Error> {
        let mut again = true;
        loop {
            let busy = self.holders.current().await?;
            let asked = self.ask(&busy, limit, asks.len()).await;
            if let Some(concluded) = conclude(&busy, asked, &mut again) {
                return concluded;
            }
        }
    }

    fn gathers(limit: &Limit) -> bool {
        match limit.limit_keys.as_slice() {
            [] => true,
            [own, _] => *own == limit.key,
            _ => false,
        }
    }

    async fn run_many(&self, batch: &[(&Limit, Vec<()>)]) -> Result<Vec<Option<Answers>>, Error> {
        let mut again = true;
        loop {
            let busy = self.holders.current().await?;
            let asked = self.ask_many(&busy, batch).await;
            if let Some(concluded) = conclude(&busy, asked, &mut again) {
                return concluded;
            }
        }
    }
}

impl Slots {
    /// None: the holder's lease may have ended before the answer came.
    async fn ask(&self, busy: &Busy, limit: &Limit, asks: usize) -> Result<Option<Answers>, Error> {
        let keys = limit.keys();
        let quota = Quota { key: &limit.key, max: limit.max, limit_keys: &keys };
        let give_back = busy.take_owed(&limit.key);
        let n = i32::try_from(asks).unwrap_or(i32::MAX);
        let granted = self.store.exchange_quota_slots(busy.name(), &quota, give_back, n).await?;
        self.fire(&limit.key, give_back, granted, n);
        Ok(Holder::answers(busy, &limit.key, granted, asks))
    }

    /// As [`Self::ask`]; none for a key that somebody holds, and for one that is asked for in two ways at once.
    async fn ask_many(
        &self,
        busy: &Busy,
        batch: &[(&Limit, Vec<()>)],
    ) -> Result<Option<Vec<Option<Answers>>>, Error> {
        let mut keys = HashSet::new();
        let once: Vec<_> = batch.iter().map(|(limit, _)| keys.insert(&limit.key)).collect();
        let asked = std::iter::zip(batch, &once).filter(|(_, once)| **once);
        let exchanges: Vec<SlotExchange<'_>> = asked
            .map(|((limit, asks), _)| SlotExchange {
                key: &limit.key,
                max: limit.max,
                default_key: limit.limit_keys.get(1).map(String::as_str),
                give_back: busy.take_owed(&limit.key),
                n: i32::try_from(asks.len()).unwrap_or(i32::MAX),
            })
            .collect();
        let granted = self.store.exchange_slots_of_many(busy.name(), &exchanges).await?;
        let mut granted = std::iter::zip(&exchanges, granted);
        let mut answers = Some(Vec::with_capacity(batch.len()));
        for ((limit, asks), once) in std::iter::zip(batch, &once) {
            let answer = match if *once { granted.next() } else { None } {
                Some((exchange, Some(granted))) => {
                    self.fire(&limit.key, exchange.give_back, granted, exchange.n);
                    let answer = Holder::answers(busy, &limit.key, granted, asks.len());
                    if answer.is_none() {
                        answers = None;
                    }
                    answer
                }
                Some((exchange, None)) => {
                    busy.owe(&limit.key, exchange.give_back);
                    None
                }
                None => None,
            };
            if let Some(answers) = &mut answers {
                answers.push(answer);
            }
        }
        Ok(answers)
    }

    /// What was given back and not wanted again is free for others. Where less was granted than was asked for,
    /// nothing is.
    fn fire(&self, key: &str, give_back: i32, granted: i32, asked: i32) {
        if granted == asked
            && let Ok(freed @ 1..) = u64::try_from(give_back - granted)
        {
            self.releases.fire(key, freed);
        }
    }
}

/// What a statement came to; none: another holder may be asked, once.
fn conclude<T>(busy: &Busy, asked: Result<Option<T>, Error>, again: &mut bool) -> Option<Result<T, Error>> {
    match asked {
        Ok(Some(answer)) => return Some(Ok(answer)),
        Ok(None) => {}
        // It says that nothing was taken.
        Err(Error::HolderLapsed(_)) => busy.lapse(),
        // The slots may have been taken: only the holder's end can free them.
        Err(error) => {
            busy.lose();
            return Some(Err(error));
        }
    }
    if std::mem::take(again) {
        return None;
    }
    // The leases are too short for this database.
    Some(Err(Error::HolderLapsed(format!("holder \"{}\" lapsed while it was asked", busy.name()))))
}
