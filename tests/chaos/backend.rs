//! The backend: what it answers to which call, and its own record of that.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_testkit::stand_in::{Answer, Outcome, RecordedCall, StandIn, StandInOptions};

use crate::{clock::Clock, schedule::Fault};

/// What was meant for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A success with this body; none: the stream that was asked for.
    Success(Option<Vec<u8>>),
    /// A refusal for good.
    Refusal,
    /// Nothing that could be an outcome.
    Nothing,
}

/// A call as the backend saw it, in seconds since the test's start.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) attempt: i64,
    pub(crate) process: String,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) is_answered: bool,
    pub(crate) given: Given,
}

#[derive(Default)]
struct State {
    mood: Option<Fault>,
    /// By id and attempt: requests that are dispatched together share it.
    given: BTreeMap<Key, Vec<Given>>,
}

pub(crate) struct Backend {
    stand_in: StandIn,
    state: Arc<Mutex<State>>,
}

impl Backend {
    pub(crate) async fn start(seed: u64) -> Self {
        let stand_in = StandIn::start(([127, 0, 0, 1], 0).into(), StandInOptions::recording()).await.unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        stand_in.respond_with(move |call| {
            let mut state = shared.lock().unwrap();
            let key = key(call);
            let (answer, given) = answer(seed, state.mood, &key, call);
            state.given.entry(key).or_default().push(given);
            answer
        });
        Self { stand_in, state }
    }

    pub(crate) fn base_url(&self) -> String {
        self.stand_in.base_url()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.stand_in.in_flight()
    }

    /// From now on most calls fare like this; none: most are answered.
    pub(crate) fn set_mood(&self, mood: Option<Fault>) {
        self.state.lock().unwrap().mood = mood;
    }

    /// How many calls came.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().unwrap().given.values().map(Vec::len).sum()
    }

    /// In the order of their arrival. To be asked when none is under way.
    pub(crate) fn calls(&self, clock: Clock) -> Vec<Call> {
        let mut given = self.state.lock().unwrap().given.clone();
        let calls = self.stand_in.calls();
        calls
            .iter()
            .map(|call| {
                let key = key(call);
                let given = given.get_mut(&key).expect("each call was answered").remove(0);
                Call {
                    id: key.0,
                    attempt: key.1,
                    process: text(call, "x-process"),
                    start: clock.at(call.started),
                    end: call.ended.map_or(f64::INFINITY, |ended| clock.at(ended)),
                    is_answered: call.outcome == Outcome::Finished,
                    given,
                }
            })
            .collect()
    }
}

fn text(call: &RecordedCall, header: &str) -> String {
    let value = call.headers.get(header).unwrap_or_else(|| panic!("{header} is sent: {call:?}"));
    value.to_str().unwrap().to_owned()
}

/// Id and attempt.
type Key = (String, i64);

fn key(call: &RecordedCall) -> Key {
    (text(call, "x-request"), text(call, "x-attempt").parse().unwrap())
}

/// A number below `sides`, the same for the same call.
fn die(seed: u64, key: &Key, throw: u8, sides: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, key, throw).hash(&mut hasher);
    hasher.finish() % sides
}

/// In a mood most calls fare badly; in none a few do, each in a way of its own.
fn answer(seed: u64, mood: Option<Fault>, key: &Key, call: &RecordedCall) -> (Answer, Given) {
    let streams = call.path != "/echo";
    let as_asked = if streams { None } else { Some(call.body.to_vec()) };
    let few = [Fault::Resets, Fault::Busy, Fault::ServerErrors, Fault::IdleResets, Fault::CutStreams];
    let fares = match mood {
        Some(mood) if die(seed, key, 0, 10) < 7 => Some(mood),
        _ if die(seed, key, 1, 50) == 0 => Some(few[usize::try_from(die(seed, key, 2, 5)).unwrap()]),
        _ => None,
    };
    let millis = |throw, from, to| Duration::from_millis(from + die(seed, key, throw, to - from));
    let status = |code, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Answer::Status(code, headers, "not now".to_owned())
    };
    match fares {
        Some(Fault::Hangs) => (Answer::Hang, Given::Nothing),
        // Asked for no stream, half a stream is still one that was cut.
        Some(Fault::CutStreams) if streams => (Answer::CutStream, Given::Nothing),
        Some(Fault::Resets) => (Answer::Reset, Given::Nothing),
        Some(Fault::BadHttp) => {
            let words: &[u8] = match die(seed, key, 3, 3) {
                0 => b"\x00\xff no HTTP at all\r\n\r\n",
                1 => b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\ntoo short",
                _ => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nno chunk\r\n",
            };
            (Answer::Raw(words.into()), Given::Nothing)
        }
        // Where it matters: a stream whose events are no JSON still ends, and usage cannot be read.
        Some(Fault::BadJson) if streams => {
            let body = b"data: {\"usage\": {\"prompt_tokens\": \n\ndata: }}\n\ndata: [DONE]\n\n".to_vec();
            (Answer::Body("text/event-stream".into(), body.clone()), Given::Success(Some(body)))
        }
        Some(Fault::BadJson) => {
            let body = b"{\"usage\": {\"total_tokens\": -1e999, \xff\x00".to_vec();
            (Answer::Body("application/json".into(), body.clone()), Given::Success(Some(body)))
        }
        Some(Fault::Busy) if die(seed, key, 3, 2) == 0 => {
            (status(429, &[("retry-after", "1")]), Given::Nothing)
        }
        Some(Fault::Busy) => (status(503, &[("retry-after", "soon")]), Given::Nothing),
        Some(Fault::ServerErrors) => (status(500, &[]), Given::Nothing),
        Some(Fault::Refusals) => (status(400, &[]), Given::Refusal),
        Some(Fault::IdleResets) => (Answer::ThenReset(millis(3, 0, 60)), Given::Success(as_asked)),
        Some(Fault::Slowness) => (Answer::Delay(millis(3, 200, 1200)), Given::Success(as_asked)),
        _ => (Answer::Delay(millis(3, 2, 60)), Given::Success(as_asked)),
    }
}
