//! What went through a system so far, and how long each took. Payloads say when they were enqueued.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use rand::{RngExt, rngs::SmallRng};
use tokio_util::sync::CancellationToken;

/// Letters that JSON leaves as they are; drawn at random they do not compress.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(crate) struct Meter {
    started: Instant,
    enqueued: AtomicU64,
    done: AtomicU64,
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
            micros: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    /// A JSON document of `bytes` bytes (of 64 at least) with the time of now in it.
    pub(crate) fn payload(&self, bytes: usize, rng: &mut SmallRng) -> String {
        let head = format!(r#"{{"at":{},"text":""#, self.started.elapsed().as_micros());
        let mut text = vec![0_u8; bytes.max(64) - head.len() - 2];
        rng.fill(&mut text[..]);
        text.iter_mut().for_each(|letter| *letter = LETTERS[usize::from(*letter) % LETTERS.len()]);
        head + &String::from_utf8_lossy(&text) + r#""}"#
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
        let now = self.started.elapsed().as_micros();
        let took: Vec<u32> = payloads
            .iter()
            .map(|payload| now.saturating_sub(enqueued_at(payload.as_ref())).try_into().unwrap_or(u32::MAX))
            .collect();
        self.took(took);
    }

    /// Requests that took so many microseconds each came out at the end.
    pub(crate) fn took(&self, micros: Vec<u32>) {
        self.done.fetch_add(micros.len() as u64, Ordering::Relaxed);
        self.micros.lock().unwrap_or_else(PoisonError::into_inner).extend(micros);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// How long the requests took that came out since the last call.
    pub(crate) fn take_micros(&self) -> Vec<u32> {
        mem::take(&mut self.micros.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The first number in it; `jsonb` keeps the order of the two keys, and adds spaces.
fn enqueued_at(payload: &[u8]) -> u128 {
    let digits = payload.iter().skip_while(|byte| !byte.is_ascii_digit());
    digits.take_while(|byte| byte.is_ascii_digit()).fold(0, |at, digit| at * 10 + u128::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_size_asked_for_and_tells_its_time() {
        let meter = Meter::new();
        let payload = meter.payload(512, &mut rand::make_rng());
        assert_eq!(payload.len(), 512);
        assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok(), "{payload}");
        assert_eq!(enqueued_at(br#"{"at": 1234, "text": "9"}"#), 1234);
        meter.popped(&[payload]);
        assert!(meter.done() == 1 && meter.take_micros()[0] < 10_000_000, "seconds at most");
    }
}
