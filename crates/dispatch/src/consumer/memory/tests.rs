use leasehold_store::{Arrival, Arrivals, Lease, Mark, Place};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

const LEASES: [Lease; 2] =
    [Lease { partition: 0, epoch: 1, draining: false }, Lease { partition: 1, epoch: 1, draining: false }];

/// What a database would say, with transactions that stay open. Requests are pending, or they are gone.
#[derive(Default)]
struct Database {
    next: u64,
    arrivals: i64,
    open: Vec<(u64, Vec<Arrival>)>,
    pending: BTreeMap<Place, Arrival>,
    /// The last poll read all that was not settled.
    whole: bool,
}

impl Database {
    fn xid(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn begin(&mut self) -> usize {
        let xid = self.xid();
        self.open.push((xid, Vec::new()));
        self.open.len() - 1
    }

    fn enqueue(&mut self, transaction: usize, partition: i16, deadline: i64) {
        self.arrivals += 1;
        let place = Place { deadline, seq: self.arrivals };
        self.open[transaction].1.push(Arrival { partition, place, arrival: self.arrivals });
    }

    fn commit(&mut self, transaction: usize) {
        let (_, requests) = self.open.swap_remove(transaction);
        self.pending.extend(requests.iter().map(|request| (request.place, *request)));
    }

    fn arrivals(&mut self, reading: &Reading) -> Arrivals {
        let mark = reading.mark.then(|| Mark { last: self.arrivals, xid: self.xid() });
        let mut requests = Vec::new();
        for (partition, after) in &reading.after {
            let mut found: Vec<Arrival> = self
                .pending
                .values()
                .filter(|r| r.partition == *partition && r.arrival > *after)
                .copied()
                .collect();
            found.sort_by_key(|request| request.arrival);
            requests.extend(found.into_iter().take(ARRIVALS as usize));
        }
        let xmin = self.open.iter().map(|(xid, _)| *xid).min().unwrap_or(self.next + 1);
        Arrivals { requests, xmin, mark, exclusive: true }
    }

    fn first(&self, partitions: &[i16], most: usize) -> Vec<Arrival> {
        let of = |partition| self.pending.values().filter(move |r| r.partition == partition).take(most);
        partitions.iter().flat_map(|partition| of(*partition)).copied().collect()
    }

    /// The places that were dispatched, and whether they were remembered.
    fn poll(&mut self, memory: &mut Memory, limit: usize, now: Instant) -> (Vec<Place>, bool) {
        memory.sync(&LEASES, 0);
        let reading = memory.reading(now);
        self.whole = reading.whole;
        let arrivals = self.arrivals(&reading);
        memory.note(&reading, &arrivals, now);
        let mut picks = Vec::new();
        let remembered = loop {
            match memory.next(limit - picks.len()) {
                Some(Next::Dispatch(more)) if more.is_empty() => break true,
                Some(Next::Dispatch(more)) => picks.extend(more),
                Some(Next::LookUp(partitions)) => {
                    let most = FIRST as usize + picks.len();
                    memory.looked_up(&partitions, &self.first(&partitions, most), most, &picks, now);
                }
                None => break false,
            }
        };
        if !remembered {
            let first: Vec<Place> = self.pending.keys().take(limit).copied().collect();
            self.pending.retain(|place, _| !first.contains(place));
            memory.taken(&first.iter().map(|place| place.seq).collect());
            return (first, false);
        }
        let named: HashSet<i64> = picks.iter().map(|pick| pick.arrival).collect();
        let taken: Vec<Place> = self
            .pending
            .values()
            .filter(|r| named.contains(&r.arrival))
            .map(|request| request.place)
            .collect();
        self.pending.retain(|_, request| !named.contains(&request.arrival));
        let xid = self.xid();
        let seqs: HashSet<i64> = taken.iter().map(|place| place.seq).collect();
        memory.dispatched(&picks, &seqs, (!taken.is_empty()).then_some(xid), now);
        (taken, true)
    }
}

/// Whatever commits late, is dispatched behind our back, or comes in crowds: every poll gets what a look at everything would.
#[test]
fn what_is_remembered_is_what_is_pending_in_its_order() {
    let mut remembered_polls = 0;
    for seed in 0..12 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut database, mut memory) = (Database::default(), Memory::default());
        let start = Instant::now();
        for step in 0..600_u64 {
            let now = start + Duration::from_millis(step * rng.random_range(1..40));
            match rng.random_range(0..10) {
                0 if database.open.len() < 4 => {
                    database.begin();
                }
                0 | 1 if !database.open.is_empty() => {
                    let transaction = rng.random_range(0..database.open.len());
                    database.commit(transaction);
                }
                2..5 => {
                    let transaction = if database.open.is_empty() { database.begin() } else { 0 };
                    let crowd = if rng.random_ratio(1, 40) { 3000 } else { 5 };
                    let partition = rng.random_range(0..2);
                    for _ in 0..rng.random_range(0..crowd) {
                        database.enqueue(transaction, partition, rng.random_range(0..1000));
                    }
                }
                // What a look for the ended takes.
                5 if seed % 2 == 1 && rng.random_ratio(1, 8) => {
                    let gone: Vec<Place> =
                        database.pending.keys().filter(|_| rng.random_ratio(1, 4)).copied().collect();
                    database.pending.retain(|place, _| !gone.contains(place));
                }
                _ => {
                    let limit = rng.random_range(1..40);
                    let expected: Vec<Place> = database.pending.keys().take(limit).copied().collect();
                    let (found, remembered) = database.poll(&mut memory, limit, now);
                    remembered_polls += usize::from(remembered);
                    if seed % 2 == 0 && database.whole {
                        assert_eq!(found, expected, "seed {seed}, step {step}");
                    }
                    assert!(found.is_sorted() && found.len() <= limit, "seed {seed}, step {step}");
                }
            }
        }
        while !database.open.is_empty() {
            database.commit(0);
        }
        let left = database.pending.len();
        let mut found = 0;
        for look in 0..left + 20 {
            let now = start + Duration::from_secs(3600 + look as u64);
            found += database.poll(&mut memory, 1000, now).0.len();
        }
        assert_eq!((found, database.pending.len()), (left, 0), "seed {seed}");
    }
    assert!(remembered_polls > 500, "{remembered_polls}");
}
