//! A random walk over everything that happens to slots, beside a model that a reader can check at a glance.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use crate::{
    quota_slots::{NO_GRACE, holder_lapsed, quota},
    support::{Site, TTL},
};

const SEEDS: [u64; 6] = [1, 2, 3, 5, 8, 13];
const STEPS: usize = 120;
const HOLDERS: [&str; 4] = ["a", "b", "c", "d"];
const KEYS: [&str; 3] = ["x", "y", "z"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Register(&'static str),
    Acquire {
        holder: &'static str,
        key: &'static str,
        n: i32,
        max: i64,
    },
    Release {
        holder: &'static str,
        key: &'static str,
        n: i32,
    },
    Renew(&'static str),
    Lapse(&'static str),
    Delete(&'static str),
    ReapHolders,
    Reap,
    /// An acquire, a release and a delete that come to nothing.
    RollBack {
        holder: &'static str,
        key: &'static str,
        n: i32,
    },
}

impl Step {
    fn draw(rng: &mut StdRng) -> Self {
        let (holder, key) = (*HOLDERS.choose(rng).unwrap(), *KEYS.choose(rng).unwrap());
        let n = rng.random_range(1..=6);
        match rng.random_range(0..100) {
            0..15 => Self::Register(holder),
            15..50 => Self::Acquire { holder, key, n, max: rng.random_range(0..=8) },
            50..72 => Self::Release { holder, key, n },
            72..80 => Self::Renew(holder),
            80..85 => Self::Lapse(holder),
            85..88 => Self::Delete(holder),
            88..91 => Self::ReapHolders,
            91..95 => Self::Reap,
            _ => Self::RollBack { holder, key, n },
        }
    }
}

/// Every holder there is: its slots while it is live, none once it has lapsed.
#[derive(Default)]
struct Model {
    holders: BTreeMap<&'static str, Option<BTreeMap<&'static str, i32>>>,
}

impl Model {
    fn live(&mut self, holder: &str) -> Option<&mut BTreeMap<&'static str, i32>> {
        self.holders.get_mut(holder)?.as_mut()
    }

    fn slots_of(&self, key: &str) -> Vec<(String, i32)> {
        let held = |(holder, slots): (&&str, &Option<BTreeMap<&str, i32>>)| {
            let n = *slots.as_ref()?.get(key)?;
            (n > 0).then(|| ((*holder).to_owned(), n))
        };
        self.holders.iter().filter_map(held).collect()
    }

    fn used(&self, key: &str) -> i64 {
        self.slots_of(key).iter().map(|(_, n)| i64::from(*n)).sum()
    }

    fn lapsed(&self) -> Vec<&'static str> {
        self.holders.iter().filter(|(_, slots)| slots.is_none()).map(|(holder, _)| *holder).collect()
    }
}

/// Does the step in both, and compares what each says of it.
async fn take(site: &Site, model: &mut Model, step: Step) {
    match step {
        Step::Register(holder) => {
            let registered = site.store.register_quota_holder(holder, TTL).await;
            assert_eq!(registered.is_ok(), !model.holders.contains_key(holder), "{registered:?}");
            model.holders.entry(holder).or_insert_with(|| Some(BTreeMap::new()));
        }
        Step::Acquire { holder, key, n, max } => {
            let used = model.used(key);
            let answer = site.store.acquire_quota_slots(holder, &quota(key, max), n).await;
            match model.live(holder) {
                None => _ = holder_lapsed(answer.unwrap_err()),
                Some(slots) => {
                    let granted = i64::from(n).min(max - used).max(0);
                    assert_eq!(i64::from(answer.unwrap()), granted);
                    *slots.entry(key).or_default() += i32::try_from(granted).unwrap();
                    assert!(granted == 0 || model.used(key) <= max);
                }
            }
        }
        Step::Release { holder, key, n } => {
            site.give_back(holder, key, n).await;
            if let Some(held) = model.live(holder).and_then(|slots| slots.get_mut(key)) {
                *held = (*held - n).max(0);
            }
        }
        Step::Renew(holder) => {
            let renewed = site.store.renew_quota_holder(holder, TTL).await.unwrap();
            assert_eq!(renewed, model.live(holder).is_some());
        }
        Step::Lapse(holder) => {
            site.lapse_holder(holder).await;
            if let Some(slots) = model.holders.get_mut(holder) {
                *slots = None;
            }
        }
        Step::Delete(holder) => {
            let deleted = site.store.delete_quota_holder(holder).await.unwrap();
            assert_eq!(deleted, model.holders.remove(holder).is_some());
        }
        Step::ReapHolders => {
            let lapsed = model.lapsed();
            let reaped = site.store.reap_quota_holders(NO_GRACE, 10).await.unwrap();
            assert_eq!(usize::try_from(reaped).unwrap(), lapsed.len());
            model.holders.retain(|holder, _| !lapsed.contains(holder));
        }
        Step::Reap => {
            site.execute(
                "UPDATE quota_slots SET since = since - interval '1 minute'; UPDATE quota_keys SET refused_at = NULL",
            )
            .await;
            site.store.reap_quota(100).await.unwrap();
            assert_eq!(site.count("quota_slots WHERE slots = 0").await, 0);
        }
        Step::RollBack { holder, key, n } => {
            let open = site.begin().await;
            if model.live(holder).is_some() {
                open.execute(&format!("SELECT quota_acquire('{holder}', '{key}', {n}, 99)")).await;
            }
            open.execute(&format!(
                "SELECT quota_release('{holder}', '{{{key}}}', '{{1}}'); SELECT quota_delete('{holder}')"
            ))
            .await;
            assert!(open.client.simple_query("SELECT quota_acquire('nobody', 'k', 1, 1)").await.is_err());
            open.roll_back().await;
        }
    }
}

async fn agree(site: &Site, model: &Model) {
    let listed = site.store.list_quotas("", 10).await.unwrap();
    for key in KEYS {
        assert_eq!(site.slots_of(key).await, model.slots_of(key), "{key}");
        let used = listed.iter().find(|q| q.key == key).map_or(0, |q| q.used);
        assert_eq!(used, model.used(key), "{key} as it is listed");
    }
    for holder in model.lapsed() {
        let renewed = site.store.renew_quota_holder(holder, TTL).await.unwrap();
        assert!(!renewed, "{holder} is live again");
    }
}

/// Cases 49 to 53, invariant 4. A failure names its seed and its steps.
#[tokio::test]
async fn database_agrees_with_a_model_after_every_step() {
    let site = Site::open().await;
    for seed in SEEDS {
        site.execute("TRUNCATE quota_holders, quota_keys, quota_slots").await;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut model = Model::default();
        let mut granted = 0;
        for n in 0..STEPS {
            let step = Step::draw(&mut rng);
            println!("seed {seed}, step {n}: {step:?}");
            take(&site, &mut model, step).await;
            agree(&site, &model).await;
            granted += i64::from(KEYS.iter().any(|key| model.used(key) > 0));
        }
        assert!(granted > STEPS as i64 / 4, "seed {seed} walked where nothing is held");
    }
}
