//! What went through a system so far, and how long each took. Payloads say when they were enqueued.

use std::{
    mem,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use rand::{RngExt, rngs::SmallRng};
use tokio_util::sync::CancellationToken;

/// Letters that JSON leaves as they are; drawn at random they do not compress.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Drawn at random, the first ones more often, they compress as chats do: lz4 takes a third off.
const WORDS: &str = "the of and to a in is you that it he was for on are as with his they I at be this have from or one had by \
    word but not what all were we when your can said there use an each which she do how their if will up other about out \
    many then them these so some her would make like him into time has look two more write go see number no way could \
    people my than first water been call who oil its now find long down day did get come made may part over new sound \
    take only little work know place year live me back give most very after thing our just name good sentence man think";

/// What a payload is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Random letters, which do not compress.
    Letters,
    /// Random words.
    Words,
}

pub(crate) struct Meter {
    started: Instant,
    enqueued: AtomicU64,
    done: AtomicU64,
    first: OnceLock<Duration>,
    micros: Mutex<Vec<u32>>,
    /// Ends the work.
    pub(crate) stop: CancellationToken,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            enqueued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            first: OnceLock::new(),
            micros: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Time on the clock that payloads are stamped by.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn enqueued(&self, requests: u64) {
        self.enqueued.fetch_add(requests, Ordering::Relaxed);
    }

    /// Enqueued, and not through yet.
    pub(crate) fn under_way(&self) -> u64 {
        self.enqueued.load(Ordering::Relaxed).saturating_sub(self.done())
    }

    /// These payloads came out at the end.
    pub(crate) fn popped(&self, payloads: &[impl AsRef<[u8]>]) {
        let now = self.now().as_micros();
        let took = payloads.iter().filter_map(|payload| {
            let took = now.saturating_sub(enqueued_at(payload.as_ref())?);
            Some(took.try_into().unwrap_or(u32::MAX))
        });
        self.count(payloads.len(), took.collect());
    }

    /// Requests that took so many microseconds each came out at the end.
    pub(crate) fn took(&self, micros: Vec<u32>) {
        self.count(micros.len(), micros);
    }

    fn count(&self, requests: usize, micros: Vec<u32>) {
        if requests > 0 {
            self.first.get_or_init(|| self.now());
        }
        self.done.fetch_add(requests as u64, Ordering::Relaxed);
        self.micros.lock().unwrap_or_else(PoisonError::into_inner).extend(micros);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// When the first request came out.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.first.get().copied()
    }

    /// How long the requests took that came out since the last call, those left out whose payload has no time.
    pub(crate) fn take_micros(&self) -> Vec<u32> {
        mem::take(&mut self.micros.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A JSON document of `bytes` bytes (of 64 at least) with a time in it; none: zero, which is not counted.
pub(crate) fn payload(at: Option<Duration>, bytes: usize, content: Content, rng: &mut SmallRng) -> String {
    let head = format!(r#"{{"at":{},"text":""#, at.map_or(0, |at| at.as_micros().max(1)));
    let room = bytes.max(64) - head.len() - 2;
    let text = match content {
        Content::Letters => {
            let mut text = vec![0_u8; room];
            rng.fill(&mut text[..]);
            text.iter_mut().for_each(|letter| *letter = LETTERS[usize::from(*letter) % LETTERS.len()]);
            text
        }
        Content::Words => words(room, rng),
    };
    head + &String::from_utf8_lossy(&text) + r#""}"#
}

/// The beginning of a payload, as a document of its own.
pub(crate) fn answer(payload: &[u8], bytes: usize) -> Bytes {
    match payload.get(..bytes.max(64) - 2) {
        Some(head) if payload.len() > bytes => Bytes::from([head, br#""}"#].concat()),
        _ => Bytes::copy_from_slice(payload),
    }
}

fn words(bytes: usize, rng: &mut SmallRng) -> Vec<u8> {
    static ALL: OnceLock<Vec<&str>> = OnceLock::new();
    let all = ALL.get_or_init(|| WORDS.split_whitespace().collect());
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        let (one, other) = (rng.random_range(0..all.len()), rng.random_range(0..all.len()));
        text.extend_from_slice(all[one.min(other)].as_bytes());
        text.push(b' ');
    }
    text.truncate(bytes);
    text
}

/// The first number in it, unless zero; `jsonb` keeps the order of the two keys, and adds spaces.
fn enqueued_at(payload: &[u8]) -> Option<u128> {
    let digits = payload.iter().skip_while(|byte| !byte.is_ascii_digit());
    let at = digits.take_while(|byte| byte.is_ascii_digit());
    Some(at.fold(0, |at, digit| at * 10 + u128::from(digit - b'0'))).filter(|at| *at > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_size_asked_for_and_tells_its_time() {
        let meter = Meter::new();
        for content in [Content::Letters, Content::Words] {
            let payload = payload(Some(meter.now()), 512, content, &mut rand::make_rng());
            assert_eq!(payload.len(), 512);
            assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok(), "{payload}");
            meter.popped(&[payload]);
            assert!(meter.take_micros()[0] < 10_000_000, "seconds at most");
        }
        assert_eq!(enqueued_at(br#"{"at": 1234, "text": "9"}"#), Some(1234));
        assert_eq!(meter.done(), 2);
    }

    #[test]
    fn what_has_no_time_is_counted_and_not_timed() {
        let meter = Meter::new();
        meter.popped(&[payload(None, 64, Content::Letters, &mut rand::make_rng())]);
        assert!(meter.done() == 1 && meter.take_micros().is_empty() && meter.first().is_some());
    }
}
